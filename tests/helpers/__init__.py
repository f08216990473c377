"""What the tests stand on. The oracle and all it uses import nothing of graphfreeze: it is measured by them."""
