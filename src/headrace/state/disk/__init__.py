"""What RocksDB is opened with, what it fails with, and the rows of one column family."""
