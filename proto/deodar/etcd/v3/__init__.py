"""Messages of etcd's v3 API."""
