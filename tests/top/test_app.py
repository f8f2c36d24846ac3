"""The app driven by keys: what stands on the screen is what the model knows."""

from __future__ import annotations

import dataclasses
import re

import pytest

from gt_runtime.telemetry.records import Event
from gt_top import units
from gt_top.actions import ACTIONS, available, key_name
from gt_top.app import Options
from gt_top.cluster import Linked, Unlinked
from gt_top.screens.choose import Choice, ChooseScreen
from gt_top.screens.help import HelpScreen
from gt_top.styles.palette import PALETTES
from gt_top.widgets.glyphs import ASCII
from gt_top.widgets.table import LineTable
from tests.top.driving import Driven, driven, run
from tests.top.fakes import frame, gpu_worker, session, story


@run
async def test_every_figure_on_screen_is_the_models() -> None:
    async with driven(story(), size=(220, 50)) as d:
        for w in d.view.workers:
            r, line = w.record, d.row(w.id)
            for text in (
                r.host or "-",
                units.percent(r.utilisation),
                units.pair(r.memory_used, r.memory_total),
                units.count(r.queue),
                units.count(r.instr_rate),
                units.count(r.values),
                units.size(r.value_bytes),
                str(r.pid),
                w.record.state,
            ):
                assert text in line.split() or text in line, (text, line)
        for s in d.view.sessions:
            line = d.row(s.id)
            for text in (
                s.id,
                s.record.user or "-",
                str(s.record.pid),
                units.count(s.record.instr_rate),
                s.record.state,
            ):
                assert text in line.split(), (text, line)
        t = d.view.totals
        assert f"{t.workers} workers · 6 ready · 1 draining · 1 lost" in d.lines[0]
        assert f"{units.count(t.instr_rate)} instr/s" in d.lines[0]
        assert "rev r12 “tp4 for layer1”" in d.lines[0]
        assert f"{units.percent(t.utilisation.value)} 6 of 7" in d.lines[1]
        assert f"QUEUE {units.count(t.queue.value)}" in d.lines[1]
        for e in d.view.events:
            assert e.text in d.text


@run
async def test_it_follows_the_feed() -> None:
    async with driven(story(steps=3)) as d:
        assert d.column("QUEUE")[0] == units.count(d.view.workers[0].record.queue)
        await d.tell(frame(500, 200, workers=[gpu_worker(0, queue=77), gpu_worker(9, queue=5)]), after=0.5)
        assert d.column("QUEUE")[0] == "77"
        assert "2 workers" in d.lines[0]
        assert "gone 0s" in d.row("w1")


@run
async def test_nothing_is_painted_when_nothing_changes_and_little_when_little_does() -> None:
    async with driven(story(), size=(120, 40)) as d:
        await d.draw()
        before = LineTable.repainted
        await d.draw()
        assert LineTable.repainted == before
        last = d.view.seq
        workers = [w.record for w in d.view.workers]
        workers[2] = dataclasses.replace(workers[2], queue=12345)
        sessions = [s.record for s in d.view.sessions]
        await d.tell(frame(last + 1, 119, workers=workers, sessions=sessions))
        assert 1 <= LineTable.repainted - before <= 2 + len(sessions) + len(workers)


@pytest.mark.parametrize(
    ("after", "word"), [(0.4, "live 0.4s"), (3.0, "lagging 3.0s"), (9.0, "stale 9s"), (700.0, "unreachable 11m40s")]
)
@run
async def test_the_header_says_how_old_the_picture_is(after: float, word: str) -> None:
    async with driven(story()) as d:
        await d.draw(after=after)
        assert word in d.lines[0]
        if after > 5:
            assert f"ready {units.age(after + 0.1, True)}" in d.row("w0")
            assert units.count(d.view.workers[0].record.queue) in d.row("w0").split()


@run
async def test_a_cluster_that_goes_stays_on_screen_greyed_and_comes_back() -> None:
    async with driven(story()) as d:
        await d.tell(Unlinked("its process has ended"), after=3)
        assert "unreachable 3s · its process has ended" in d.lines[0]
        assert "ready 3s" in d.row("w0")
        stale = PALETTES["dark"].style_colour("stale")
        assert _colours(d, "w0 ") == {stale}
        await d.tell(Linked("lab-a", "ipc://new"), frame(1, workers=[gpu_worker(0)]), after=60)
        assert "live" in d.lines[0]
        assert stale not in _colours(d, "w0 ")


def _colours(d: Driven, word: str) -> set[str]:
    """Foreground colours in the row of a worker, blanks and rules aside."""
    strips = d.app.screen._compositor.render_strips()
    strip = next(s for s in strips if word in s.text and s.text.strip().lstrip("▸ ").startswith(word))
    return {
        seg.style.color.triplet.hex
        for seg in strip
        if seg.style and seg.style.color and seg.style.color.triplet and seg.text.strip() and seg.text.strip(" ─▸")
    }


@run
async def test_the_cursor_stays_on_its_worker_whatever_the_order() -> None:
    async with driven(story()) as d:
        await d.press("down", "down")
        assert d.app.main.table.cursor == "w2"
        assert d.line_with("▸").split()[1] == "w2"
        await d.press("s", *["down"] * 5, "enter")  # util
        assert d.app.main.table.order.key == "util"
        assert d.line_with("▸").split()[1] == "w2"
        await d.tell(frame(900, 300, workers=[gpu_worker(i, 300) for i in (2, 1)]), after=0.5)
        assert d.line_with("▸").split()[1] == "w2"


@run
async def test_the_cursor_goes_to_a_neighbour_when_its_worker_is_gone() -> None:
    async with driven([frame(1, workers=[gpu_worker(i) for i in range(5)])]) as d:
        await d.press("end")
        assert d.app.main.table.cursor == "w4"
        await d.tell(frame(2, 1, workers=[gpu_worker(0), gpu_worker(1)]), after=1)
        await d.tell(frame(3, 2, workers=[gpu_worker(0), gpu_worker(1)]), after=40)
        assert d.app.main.table.cursor == "w1"


@run
async def test_sorting_is_asked_for_and_unknown_comes_last() -> None:
    async with driven(story(), size=(140, 40)) as d:
        assert d.column("WORKER") == [f"w{i}" for i in range(8)]
        await d.press("s", *["down"] * 7, "enter")  # queue
        queues = d.column("QUEUE")
        assert queues[-1] == "-"
        numbers = [int(q) for q in queues[:-1]]
        assert numbers == sorted(numbers, reverse=True)
        assert "by queue ▼" in d.line_with(" Workers ")
        await d.press("r")
        assert [int(q) for q in d.column("QUEUE")[:-1]] == sorted(numbers)
        assert d.column("QUEUE")[-1] == "-"
        await d.press("0")
        assert d.column("WORKER") == [f"w{i}" for i in range(8)]


@run
async def test_greater_and_less_walk_through_the_columns() -> None:
    async with driven(story()) as d:
        keys = [c.key for c in d.app.main.table.columns if c.sort is not None]
        await d.press("greater_than_sign")
        assert d.app.main.table.order.key == keys[0]
        await d.press("less_than_sign", "less_than_sign")
        assert d.app.main.table.order.key == keys[-1]


@run
async def test_rows_stay_put_while_a_dialog_is_open() -> None:
    async with driven([frame(1, workers=[gpu_worker(i, queue=i) for i in range(4)])]) as d:
        await d.press("s", *["down"] * 7, "enter")
        assert d.column("WORKER") == ["w3", "w2", "w1", "w0"]
        await d.press("s")
        await d.tell(frame(2, 1, workers=[gpu_worker(i, queue=9 - i) for i in range(4)]))
        assert [r.id for r in d.app.main.worker_table.rows] == ["w3", "w2", "w1", "w0"]
        await d.press("escape")
        assert d.column("WORKER") == ["w0", "w1", "w2", "w3"]


@run
async def test_a_filter_shows_what_has_all_its_words() -> None:
    async with driven(story()) as d:
        await d.press("slash", *"NODE2 ready")
        assert d.column("WORKER") == ["w4", "w7"]
        assert "2 of 8" in d.line_with(" Workers ")
        assert "8 workers" in d.lines[0]  # totals are of the whole pool
        await d.press("enter")
        assert "filter “NODE2 ready”" in d.line_with(" Workers ")
        await d.press("slash", "escape")
        assert len(d.column("WORKER")) == 8


@run
async def test_letters_typed_into_the_filter_are_not_commands() -> None:
    async with driven(story()) as d:
        await d.press("slash", *"qts?0")
        assert d.app.is_running
        assert not isinstance(d.app.screen, ChooseScreen)
        assert "no match for “qts?0”" in d.text
        await d.press("escape", "escape")
        assert len(d.column("WORKER")) == 8


@run
async def test_a_filter_of_one_table_leaves_the_other_alone() -> None:
    async with driven(story()) as d:
        await d.press("tab", "slash", *"ada", "enter")
        assert d.column("SESSION", "Sessions") == ["s1"]
        assert len(d.column("WORKER")) == 8


@run
async def test_help_names_every_key_and_every_column() -> None:
    async with driven(story(), size=(120, 100)) as d:
        await d.press("question_mark")
        assert isinstance(d.app.screen, HelpScreen)
        for action in ACTIONS:
            line = next(x for x in d.lines if f" {action.help}" in x)
            assert key_name(action.keys[0]) in line
        for w in d.app.main.worker_table.columns:
            assert w.help in d.text
        for s in d.app.main.session_table.columns:
            assert s.help in d.text
        await d.press("f1")
        assert not isinstance(d.app.screen, HelpScreen)


def test_no_key_has_two_meanings_and_every_action_has_one_that_works_without_ctrl() -> None:
    keys = [k for a in ACTIONS for k in a.keys]
    assert len(keys) == len(set(keys))
    for action in ACTIONS:
        assert action.name == "suspend" or any(not k.startswith("ctrl+") for k in action.keys)


def test_readonly_takes_away_what_acts() -> None:
    assert [a for a in available(readonly=True) if a.acts] == []
    assert len(available(readonly=False)) == len(ACTIONS)


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c", "ctrl+q"])
@run
async def test_quitting(key: str) -> None:
    async with driven(story()) as d:
        await d.press(key)
        assert d.app.return_code == 0
        assert not d.app.is_running


@pytest.mark.parametrize("opener", ["f1", "s"])
@run
async def test_quitting_from_a_dialog(opener: str) -> None:
    async with driven(story()) as d:
        await d.press(opener)
        await d.press("q")
        assert d.app.is_running  # q closes the dialog only
        await d.press(opener, "f10")
        assert not d.app.is_running


@run
async def test_it_asks_which_cluster() -> None:
    choices = [Choice("alpha", "alpha", "node1"), Choice("beta", "beta", "node2")]
    async with driven(story(), choices=choices) as d:
        assert isinstance(d.app.screen, ChooseScreen)
        assert d.opened == []
        assert "beta" in d.line_with("node2")
        await d.press("down", "enter")
        await d.draw()
        assert d.opened == ["beta"]
        assert "8 workers" in d.lines[0]


@run
async def test_choosing_no_cluster_quits() -> None:
    async with driven(choices=[Choice("a", "a"), Choice("b", "b")]) as d:
        await d.press("escape")
        assert not d.app.is_running
        assert d.app.return_code == 0


@run
async def test_every_theme_shows_the_same_words() -> None:
    async with driven(story(), size=(140, 40)) as d:
        seen = d.text
        for _ in PALETTES:
            await d.press("t")
            await d.draw()
            assert d.text == seen
        assert d.app.theme == "dark"


@run
async def test_ascii_is_ascii() -> None:
    async with driven(story(), options=Options(theme="mono"), glyphs=ASCII) as d:
        await d.press("slash", *"node", "enter")
        text = d.text.replace("“", '"').replace("”", '"')  # the revision's note is quoted as typed
        assert text.isascii(), sorted({c for c in text if not c.isascii()})
        await d.press("f1")
        assert d.text.replace("│", "|").translate({ord(c): "-" for c in "╭─╮╰╯▁▂▃▄▅▆▇█▔"}).isascii()


@run
async def test_state_is_a_sign_and_a_word() -> None:
    async with driven(story()) as d:
        assert "● ready" in d.row("w0")
        assert "◐ draining" in d.row("w5")
        assert "✗ lost 6s" in d.row("w6")


@run
async def test_what_is_hidden_is_said() -> None:
    async with driven(story(workers=64), size=(80, 24)) as d:
        rule = d.line_with(" Workers ")
        assert re.search(r"1-\d+ of 64", rule)
        assert re.search(r"\d+ columns hidden", rule)
        await d.press("end")
        assert re.search(r"\d+-64 of 64", d.line_with(" Workers "))
        assert d.column("WORKER")[-1] == "w63"
    async with driven(story(), size=(80, 11)) as d:
        assert "+3 sessions hidden" in d.text


@run
async def test_the_pointer_selects_and_sorts() -> None:
    async with driven(story()) as d:
        await d.pilot.click("#workers", offset=(4, 5))
        await d.pilot.pause()
        assert d.app.main.table.cursor == "w3"
        head = d.lines[3]
        await d.pilot.click("#workers", offset=(head.index("QUEUE") + 1, 1))
        await d.pilot.pause()
        assert d.app.main.worker_table.order.key == "queue"


@run
async def test_resizing_keeps_the_cursor_in_sight() -> None:
    async with driven(story(workers=64), size=(120, 50)) as d:
        await d.press("end")
        for size in ((80, 24), (40, 12), (200, 60), (80, 9)):
            await d.pilot.resize_terminal(*size)
            await d.draw()
            assert d.row("w63")


@run
async def test_a_note_of_its_own_cost() -> None:
    async with driven(story(), options=Options(debug=True)) as d:
        await d.draw()
        assert re.search(r"cpu \d+\.\d%  \S+ lines/tick  seq 129  missed 0", d.lines[-1])


@run
async def test_names_from_the_feed_are_text_and_not_markup() -> None:
    worker = gpu_worker(0, host="[red]x[/]\x1b[31m")
    async with driven(
        [frame(1, workers=[worker], sessions=[session(0, program="[b]evil[/b].py")]), Event("a[b]c", 2)]
    ) as d:
        assert "[red]x[/]�[31m" in d.text
        assert "[b]evil[/b].py" in d.text
        assert "a[b]c" in d.text


@run
async def test_wide_characters_keep_columns_straight() -> None:
    people = [session(0, user="山田"), session(1, user="ada")]
    async with driven([frame(1, workers=[gpu_worker(0)], sessions=people)], size=(120, 30)) as d:
        one, two = d.row("s1"), d.row("s2")
        assert one.index("●") + 2 == two.index("●")  # two characters of two cells each


SIZES = [(0, 0), (0, 24), (80, 0), *((w, h) for w in (1, 2, 12, 45, 80, 300) for h in (1, 3, 4, 8, 13, 100))]


@run
async def test_every_size_renders_and_quits() -> None:
    async with driven(story(workers=20, steps=4), size=(80, 24)) as d:
        for width, height in SIZES:
            await d.pilot.resize_terminal(width, height)
            await d.draw()
            if width and height:  # Textual keeps the last size where there is none
                assert len(d.lines) == height
            if height >= 9 and width >= 30:
                assert " w0 " in d.text
        await d.press("f1")
        for width, height in SIZES[::9]:
            await d.pilot.resize_terminal(width, height)
            await d.draw()
        await d.press("f10")
        assert d.app.return_code == 0
