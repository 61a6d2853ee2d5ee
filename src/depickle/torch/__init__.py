"""[extra `torch`] Live torch and torchao objects: load a checkpoint, load it into a model, save a state dict.

Works from the same index of a file as the converter and the verifier, for pickles and for safetensors alike: nothing
is unpickled, torchao's own deserialiser is not used (unless told so), and every name is accounted for.

    loading    the verbs `load` and `load_into`, over the tensors of `memory`
    building   who makes a weight of them: classes of today, by what `library` knows of the installed torchao;
               beside it `kept` (stored as they stood), `native` (torchao's reader), `formulas` (no torchao)
    saving     the verb `save`, over a checkpoint made of `live` tensors
    judge      `--check-with torch`, with `sides` and `sources`; it shares nothing with the converter
"""

try:
    from .loading import load, load_into
    from .saving import save
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("depickle.torch needs torch: pip install 'depickle[torch]'", name="torch") from error

__all__ = ["load", "load_into", "save"]
