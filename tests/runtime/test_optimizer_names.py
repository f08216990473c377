"""Optimizers and losses by name with arguments: what can be written, and what is said of the rest."""

import pytest

from graphfreeze.errors import UsageError
from graphfreeze.runtime.optimizers import Call, keras_optimizer, parse_call, tf1_optimizer

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adamw", Call("adamw")),
        ("AdamW()", Call("AdamW")),
        (" sgd( momentum = 0.9 , nesterov=True) ", Call("sgd", {"momentum": 0.9, "nesterov": True})),
        (
            "adam(clipnorm=none, beta_1=1e-3, ema_overwrite_frequency=5)",
            Call("adam", {"clipnorm": None, "beta_1": 0.001, "ema_overwrite_frequency": 5}),
        ),
        ("cross-entropy(output='a, b')", Call("cross-entropy", {"output": "a, b"})),
        ("loss:0", Call("loss:0")),
    ],
)
def test_calls(text, expected):
    assert parse_call(text, "optimizer") == expected


FORM = "is not NAME or NAME(KEY=VALUE, ...), found"
EXAMPLE = "Write for example 'adamw(learning_rate=1e-3)'"
MESSAGES = {
    "adam(0.1)": f"The optimizer 'adam(0.1)' {FORM} '0.1'. {EXAMPLE}",
    "adam(a=f('b'))": f"The optimizer 'adam(a=f('b'))' {FORM} 'a=f('b')'. {EXAMPLE}",
    "adam(a=1, a=2)": "The optimizer 'adam(a=1, a=2)' gives 'a' twice. Give each argument once",
    "adamm": "Keras has no optimizer 'adamm'. Did you mean 'adam' or 'nadam' or 'adamw'?",
    "adam(learning_rat=1)": "The optimizer 'adam' has no argument 'learning_rat'. Did you mean 'learning_rate'?",
}


@pytest.mark.parametrize(("text", "message"), MESSAGES.items())
def test_messages(text, message):
    with pytest.raises(UsageError) as caught:
        keras_optimizer(text)
    assert str(caught.value) == message


def test_a_value_that_keras_refuses():
    with pytest.raises(UsageError, match=r"^The optimizer 'adam' cannot be made: .*global_clipnorm"):
        keras_optimizer("adam(clipnorm=1, global_clipnorm=1)")


def test_arguments_arrive():
    name, make = keras_optimizer("SGD(learning_rate=0.25, momentum=0.5)")
    made = make()
    assert (name, float(made.learning_rate), made.momentum) == ("sgd", 0.25, 0.5)
    assert tf1_optimizer("Adam")("slots").get_name() == "slots"
