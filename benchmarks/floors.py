"""What the work is measured against: the least that anybody would have to do, and what people do today."""

HASH = """
import hashlib, sys
with open(sys.argv[1], "rb") as file:
    hashlib.file_digest(file, "sha256").hexdigest()
"""

# Two threads, no checks, no format: hash the source; copy it, hash the copy, compare. The shape of a conversion.
KERNEL = """
import hashlib, os, sys, threading
BLOCK = 512 * 1024
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
length = os.fstat(source).st_size

def hashed(fd):
    digest, buffer, at = hashlib.sha256(), memoryview(bytearray(BLOCK)), 0
    while count := os.preadv(fd, [buffer], at):
        digest.update(buffer[:count])
        at += count

def copied():
    digest, buffer, at = hashlib.sha256(), memoryview(bytearray(BLOCK)), 0
    while count := os.preadv(source, [buffer], at):
        os.pwrite(target, buffer[:count], at)
        digest.update(buffer[:count])
        at += count

def compared(first, last):
    a, b = bytearray(BLOCK), bytearray(BLOCK)
    for at in range(first, last, BLOCK):
        os.preadv(source, [a], at)
        os.preadv(target, [b], at)
        assert a == b

def both(*jobs):
    threads = [threading.Thread(target=job, args=arguments) for job, *arguments in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

both((hashed, source), (copied,))
half = length // BLOCK // 2 * BLOCK
both((compared, 0, half), (compared, half, length))
os.fsync(target)
"""

# The standard library's own unpickler, written in Python, over the same pickle.
UNPICKLE = """
import io, pickle, sys, zipfile

class Anything:
    def __init__(self, *args): pass
    def __setstate__(self, state): pass

class Unpickler(pickle._Unpickler):
    def find_class(self, module, name): return Anything
    def persistent_load(self, pid): return pid

with zipfile.ZipFile(sys.argv[1]) as archive:
    name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
    Unpickler(io.BytesIO(archive.read(name))).load()
"""

# The way that publishers convert today, with torch, torchao and safetensors; int8 of torchao v1 unwrapped by hand.
SCRIPT = """
import hashlib, sys, torch
from safetensors.torch import save_file
from safetensors import safe_open
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8Tensor
from torchao.dtypes.affine_quantized_tensor import AffineQuantizedTensor
from torchao.dtypes.uintx.plain_layout import PlainAQTTensorImpl
from torchao.dtypes.utils import PlainLayout
from torchao.quantization.linear_activation_quantized_tensor import LinearActivationQuantizedTensor
from torchao.quantization.quant_api import _int8_symm_per_token_reduced_range_quant
from torchao.quantization.quant_primitives import ZeroPointDomain

allowed = [AffineQuantizedTensor, PlainAQTTensorImpl, PlainLayout, LinearActivationQuantizedTensor,
           _int8_symm_per_token_reduced_range_quant, ZeroPointDomain]
with torch.serialization.safe_globals(allowed):
    loaded = torch.load(sys.argv[1], weights_only=True)
state_dict = {}
for name, value in loaded["state_dict"].items():
    if isinstance(value, LinearActivationQuantizedTensor):
        impl = value.original_weight_tensor.tensor_impl
        value = Int8Tensor(impl.int_data, impl.scale.unsqueeze(1), [1, impl.int_data.shape[1]], torch.bfloat16)
    state_dict[name] = value
tensors, metadata = flatten_tensor_state_dict(state_dict)
save_file(tensors, sys.argv[2], metadata)
with safe_open(sys.argv[2], "pt") as back:
    for name, tensor in tensors.items():
        assert torch.equal(back.get_tensor(name), tensor)
for path in sys.argv[1:3]:
    with open(path, "rb") as file:
        hashlib.file_digest(file, "sha256").hexdigest()
"""

IMPORT = "import depickle"
NOTHING = "pass"
