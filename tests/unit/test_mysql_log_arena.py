from tidemark.readers.mysql.binlog.arena import Arena


def test_growing_to_less_than_there_is_keeps_everything() -> None:
    """Happens for a large payload after one that was larger."""
    arena = Arena(receive_bytes=100, unpack_bytes=10)
    arena.grow_unpacked(500)
    arena.forget_unpacked()
    arena.unpack_into(10)[:] = b"0123456789"
    arena.grow_unpacked(20)
    assert arena.buf[arena.room : arena.room + 10].tobytes() == b"0123456789"
    assert arena.unpacked == arena.room + 20
    assert len(arena.buf) == 600
