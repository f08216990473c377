"""Training steps that are put into a model: ``train``, ``evaluate``, ``save`` and ``restore`` as signatures.

| file | what it knows |
|---|---|
| ``build`` | the public function: which kind of model it is, and what is written |
| ``losses`` | losses by name, on one output of a function |
| ``phases`` | what a phase trains, through which function, with which loss |
| ``inputs`` | which function is trained through, its inputs and its outputs |
| ``objects`` | TF2 models: functions and optimizer state under the root's child ``graphfreeze`` |
| ``graphs`` | TF1 models: a train op per phase in the graph |
| ``saver`` | the names under which ``save`` stores variables |
"""
