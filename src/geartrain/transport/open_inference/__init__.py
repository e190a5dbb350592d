"""The Open Inference Protocol over REST, with the extensions that Triton has beside it."""
