"""How RocksDB keeps rows, and what the RocksDBs of a process share."""

from __future__ import annotations

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    MemtableFactory,
    Options,
    WriteBufferManager,
)

# Small memtables fit the processor's cache: at random keys a put takes 1.4, 1.8, 2.2 and 3.2 us
# with 4, 8, 16 and 64 MiB; below 8 MiB the compaction of large stores costs more than is won. With
# min_write_buffer_number_to_merge an end of a restore in 30 waited for ever in a manual flush.
_WRITE_BUFFER_BYTES = 8 << 20
_WRITE_BUFFERS_MAX = 6
# A fiftieth of a memtable: reads of large stores take a quarter less time, writes a twentieth more.
_MEMTABLE_FILTER_RATIO = 0.02
# Of the budget of all tasks, for a first row; an eighth of a memtable would be too much for sixty.
_ARENA_BLOCK_BYTES = 64 << 10


class RocksMemory:
    """What all RocksDBs of a process share: one block cache and one budget for write buffers.

    Args:
        block_cache_bytes: the cache of blocks that were read.
        write_buffer_bytes: rows that are in memory and not yet in a file.
    """

    def __init__(self, *, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self.cache = Cache(block_cache_bytes)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, False, self.cache
        )


def row_options(memory: RocksMemory) -> Options:
    """How rows are kept: on disk, and in memory before."""
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_block_size(16 << 10)
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    # Most reads find their row, if there is one, in a file: the filter spares them the memtables.
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_MEMTABLE_FILTER_RATIO)
    options.set_max_write_buffer_number(_WRITE_BUFFERS_MAX)
    options.set_write_buffer_manager(memory.write_buffers)
    # One thread writes, so the memtable need not be ready for several.
    options.set_allow_concurrent_memtable_write(False)
    return options


def bulk_options(memory: RocksMemory) -> Options:
    """How rows are kept while they only come in: put side by side, and sorted for their file.

    A read there sorts all that is in memory, each time.
    """
    options = row_options(memory)
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_memtable_whole_key_filtering(False)
    options.set_memtable_prefix_bloom_ratio(0.0)
    return options
