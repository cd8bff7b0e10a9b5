from matchserve.engine.idle import IdleWatch


def test_idle_is_said_once_and_only_after_work() -> None:
    now = 0.0
    watch = IdleWatch(5.0, clock=lambda: now)
    assert not watch.has_become_idle(is_busy=False)
    assert not watch.has_become_idle(is_busy=True)
    now = 4.0
    assert not watch.has_become_idle(is_busy=False)
    now = 5.0
    assert watch.has_become_idle(is_busy=False)
    assert not watch.has_become_idle(is_busy=False)
