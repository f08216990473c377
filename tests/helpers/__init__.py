"""What the tests stand on. Nothing in here imports graphfreeze: these are the things it is measured against."""
