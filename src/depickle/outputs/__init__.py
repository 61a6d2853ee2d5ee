"""Output containers, one module each: `plan` takes a checkpoint to a layout, `index` a file to the checkpoint that it
describes."""
