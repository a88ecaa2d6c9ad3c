"""Where a cluster keeps who is who: etcd, or the embedded default for one machine."""
