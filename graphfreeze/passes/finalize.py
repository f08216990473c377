from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class Finalized:
    variables: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    out: str = ""
def is_rewritten(d): return False
def finalize_draft(d, unfreeze=()): return Finalized()
def frozen_regions(d): return {}
