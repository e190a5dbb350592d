"""The Open Inference Protocol over gRPC: decode, call the service, encode.

`import grpc` takes a tenth of a second and 20 MB, so only `listener` and `options` may be imported at the start.
"""
