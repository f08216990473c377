"""How the effective value of a variable is computed: one merge per access path, over atoms."""
