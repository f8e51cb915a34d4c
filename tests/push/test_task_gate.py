import asyncio

from delayd.push.task_gate import Gate


async def test_a_few_go_on_in_each_pass_in_the_order_in_which_they_came() -> None:
    gate = Gate(3)
    went: list[int] = []

    async def go(number: int) -> None:
        await gate.passed()
        went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(20)]
    tasks[5].cancel()
    passes = []
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        passes.append(len(went))
    assert went == [number for number in range(20) if number != 5]
    assert all(after - before <= 3 for before, after in zip([0, *passes], passes, strict=False))


async def test_nobody_waits_where_few_come() -> None:
    gate = Gate(2)
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    counting = asyncio.create_task(count())
    waited = []
    for _ in range(6):
        before = passes
        await gate.passed()
        waited.append(passes > before)
        await asyncio.sleep(0)
    counting.cancel()
    assert waited == [False, False, True, False, True, False]
