"""Everything that starts TensorFlow; each module imports it inside its functions, ``keras_classes`` is imported so."""
