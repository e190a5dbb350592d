"""The Open Inference Protocol over gRPC: decode, call the service, encode.

The package of protobuf and the messages take some 30 ms to import, so a start imports `heads` and `options` alone, and
the handler when it has time.
"""
