"""Random ops get a seed where they have none."""

from graphfreeze.graph.randomness import seed_random_ops
from graphfreeze.savedmodel.protos import MetaGraphDef


def test_only_ops_without_a_seed_get_one():
    meta = MetaGraphDef()
    function = meta.graph_def.library.function.add()
    function.node_def.add(name="a", op="RandomUniform")
    function.node_def.add(name="b", op="RandomUniform")
    function.node_def.add(name="c", op="RandomUniform").attr["seed2"].i = 7
    function.node_def.add(name="d", op="Add")
    meta.graph_def.node.add(name="a", op="TruncatedNormal").attr["seed"].i = 0
    assert seed_random_ops(meta) == 3
    a, b, c, d = function.node_def
    assert a.attr["seed"].i == meta.graph_def.node[0].attr["seed"].i > 0
    assert b.attr["seed"].i not in (0, a.attr["seed"].i)
    assert ("seed" in c.attr, len(d.attr)) == (False, 0)
    assert seed_random_ops(meta) == 0
