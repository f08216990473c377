"""The training loop of ``graphfreeze train``: phases in order, whole checkpoints, and a resume that is exact.

| file | what it knows |
|---|---|
| ``train`` | the public function: what is loaded, resumed and written |
| ``loop`` | phases, epochs and steps in order, and where a run stands |
| ``step`` | one step as a function of TensorFlow, and the optimizers |
| ``request`` | the options of a run, and what makes two runs the same |
| ``files``, ``columns`` | data files, and how their arrays fit a function's inputs |
| ``batches`` | the order of data: a pure function of the seed and the epoch |
| ``store`` | checkpoints that are there whole or not at all |
| ``scalars`` | TensorBoard |
| ``result`` | what a run did, as a value |
"""
