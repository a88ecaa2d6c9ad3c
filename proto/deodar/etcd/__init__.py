"""The part of etcd's public wire contract that the registry speaks."""
