"""Measurements of what a rewrite and a training step cost; see README.md."""
