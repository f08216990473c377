"""What each command hands to the api."""

from pathlib import Path

from tests.cli.standing_in import NO_SELECTION, run


def test_inspect_call(api):
    assert run("inspect", "M").exit_code == 0
    assert run("inspect", "M", "--tags", "serve, gpu").exit_code == 0
    assert run("inspect", "M", "--tags", "").exit_code == 0
    assert api.calls == [
        ("inspect", (Path("M"),), {"tags": None, "deep": False}),
        ("inspect", (Path("M"),), {"tags": ("serve", "gpu"), "deep": False}),
        ("inspect", (Path("M"),), {"tags": (), "deep": False}),
    ]


SELECTION = (
    *("--freeze", "a/**", "--train", "a/b", "--freeze", "emb[:50, [1, 2]]", "--spec", "f.toml", "--strategy", "mask"),
    *(
        "--copy",
        "live",
        "--batch-norm",
        "update",
        "--strict",
        "--enable",
        "--state",
        "--add",
        "--allow-empty",
        "--lite",
        "--tags",
        "serve",
    ),
)
SELECTED = {
    "freeze": ("a/**", "emb[:50, [1, 2]]"),
    "train": ("a/b",),
    "spec": Path("f.toml"),
    "strategy": "mask",
    "copy": "live",
    "batch_norm": "update",
    "strict": True,
    "enable": True,
    "state": True,
    "add": True,
    "allow_empty": True,
    "lite": True,
    "tags": ("serve",),
}


def test_plan_call(api):
    assert run("plan", "M").exit_code == 0
    assert run("plan", "M", *SELECTION).exit_code == 0
    assert api.calls == [("plan", (Path("M"),), NO_SELECTION), ("plan", (Path("M"),), SELECTED)]


def test_rewrite_call(api):
    assert run("rewrite", "M", "O").exit_code == 0
    more = ("--plan", "p.json", "--weights", "link", "--overwrite")
    assert run("rewrite", "M", "O", *SELECTION, *more).exit_code == 0
    rest = {"plan": None, "weights": "copy", "overwrite": False, "progress": None}
    assert api.calls[0] == ("rewrite", (Path("M"), Path("O")), {**NO_SELECTION, **rest})
    rest = {"plan": Path("p.json"), "weights": "link", "overwrite": True, "progress": None}
    assert api.calls[1] == ("rewrite", (Path("M"), Path("O")), {**SELECTED, **rest})


def test_finalize_call(api):
    assert run("finalize", "T", "O").exit_code == 0
    assert (
        run("finalize", "T", "O", "--unfreeze", "a/*", "--unfreeze", "b", "--weights", "link", "--overwrite").exit_code
        == 0
    )
    assert api.calls == [
        ("finalize", (Path("T"), Path("O")), {"unfreeze": (), "overwrite": False, "weights": "copy", "progress": None}),
        (
            "finalize",
            (Path("T"), Path("O")),
            {"unfreeze": ("a/*", "b"), "overwrite": True, "weights": "link", "progress": None},
        ),
    ]


def test_diff_and_checkpoint_call(api):
    assert run("diff", "A", "A").exit_code == 0
    assert run("checkpoint", "C", "--into", "R", "-o", "N").exit_code == 0
    options = ("--frozen", "model", "--at", "net", "--overwrite")
    assert run("checkpoint", "C", "--from", "R", "--out", "N", *options).exit_code == 0
    assert api.calls == [
        ("diff", (Path("A"), Path("A")), {}),
        (
            "checkpoint",
            (Path("C"), Path("N")),
            {
                "into": Path("R"),
                "from_": None,
                "frozen": "checkpoint",
                "at": None,
                "overwrite": False,
                "progress": None,
            },
        ),
        (
            "checkpoint",
            (Path("C"), Path("N")),
            {"into": None, "from_": Path("R"), "frozen": "model", "at": "net", "overwrite": True, "progress": None},
        ),
    ]
