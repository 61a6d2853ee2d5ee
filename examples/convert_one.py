"""Convert one checkpoint and say where the result is: python examples/convert_one.py MODEL.pt OUT_DIR."""

import sys

import depickle

record = depickle.convert(sys.argv[1], sys.argv[2])
print(record.dst, record.dst_sha256)
