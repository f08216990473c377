"""Runs a rewritten model beside the plain one that it must equal: forward, poison, gradients, training.

``task`` says what to do, ``run`` does it in this process, ``process`` in a fresh one; ``results`` is what comes out.
One file per check.
"""
