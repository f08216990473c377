"""What the tests stand on. The oracle and all it uses import nothing of graphfreeze: they are what it is measured by."""
