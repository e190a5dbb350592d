"""Pure translators between a protocol's bodies and the domain."""
