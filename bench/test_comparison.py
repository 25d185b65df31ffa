"""Tests of the comparison. Needs nothing but Python: `python3 -m unittest discover -s bench`."""

import math
import tempfile
import unittest
from pathlib import Path

import load
from comparison import peer, reading, table
from comparison.runs import Manner, Row, in_turn

FIXTURES = Path(__file__).parent / "fixtures"


def printed(tool):
    return (FIXTURES / f"{tool}.jsonl").read_text()


class Reading(unittest.TestCase):
    def test_llama_bench_gives_the_speed_of_its_test(self):
        self.assertAlmostEqual(reading.llama_bench(printed("llama-bench")), 27.591172)

    def test_llama_batched_bench_gives_the_speed_of_the_crowd_that_was_asked_for(self):
        text = printed("llama-batched-bench")
        self.assertEqual(reading.llama_batched_bench(text, 2), {"decode": 5329.780273, "all_s": 0.003416})
        without_its_last_line = text[: text.rindex('{"n_kv_max"')]
        self.assertEqual(reading.llama_batched_bench(without_its_last_line, 2)["decode"], 5329.780273)
        with self.assertRaises(ValueError):
            reading.llama_batched_bench(without_its_last_line, 1)

    def test_throng_bench_gives_both_speeds(self):
        speeds = reading.throng_bench(printed("throng-bench"))
        self.assertAlmostEqual(speeds["prefill"], 3316.213381750049)
        self.assertAlmostEqual(speeds["decode"], 579.0977001520904)
        self.assertAlmostEqual(speeds["all_s"], 0.020010506)


class Rows(unittest.TestCase):
    def test_a_ratio_above_one_is_throng_ahead(self):
        speed = Row("s", "m", "tokens/s", True, throng=[20, 30, 60], peer=[10, 10, 10])
        wait = Row("s", "m", "ms", False, throng=[20, 30, 60], peer=[10, 10, 10])
        self.assertEqual(speed.ratios(), [2, 3, 6])
        self.assertEqual(speed.ratio(), 3)
        self.assertAlmostEqual(wait.ratio(), 1 / 3)

    def test_the_table_shows_medians_spread_and_noise(self):
        quiet = Row("crowd", "m", "tokens/s", True, [200, 300, 600], [100, 100, 100], [0.01, 0.02, 0.9])
        noisy = Row("crowd", "m", "ms", False, [1, 1, 1], [1.5, 1.5, 1.5], [0.2, 0.2, 0.01])
        lines = table.table([quiet, noisy], most_foreign=0.05).splitlines()
        self.assertEqual(lines[2], "| crowd | m | tokens/s | 300 | 100 | 3.00× | 2.00–6.00 of 3 | 2% |")
        self.assertEqual(lines[3], "| crowd | m | ms | 1 | 1.5 | 1.50× | 1.50–1.50 of 3 | 20% noisy |")
        self.assertEqual({line.count("|") for line in lines}, {9})

    def test_saved_rows_come_back_in_the_sections_order(self):
        row = Row("crowd", "m", "tokens/s", True, [1.0], [2.0], [0.0])
        with tempfile.TemporaryDirectory() as folder:
            table.save(Path(folder), "crowd", [row])
            table.save(Path(folder), "decode", [])
            self.assertEqual(table.load(Path(folder), ["decode", "crowd", "never"]), [row])

    def test_a_model_measured_again_replaces_only_its_own_rows(self):
        first, second = (Row("crowd", model, "tokens/s", True, [1.0], [2.0], [0.0]) for model in "ab")
        again = Row("crowd", "a", "tokens/s", True, [3.0], [2.0], [0.0])
        with tempfile.TemporaryDirectory() as folder:
            for row in (first, second, again):
                table.save(Path(folder), "crowd", [row])
            self.assertEqual(table.load(Path(folder), ["crowd"]), [second, again])

    def test_added_rounds_are_appended_to_those_of_the_same_row(self):
        first, other = (Row("crowd", "a", measure, True, [1.0], [2.0], [0.0]) for measure in ("tokens/s", "ms"))
        again = Row("crowd", "a", "tokens/s", True, [3.0, 4.0], [5.0, 6.0], [0.1, 0.2])
        with tempfile.TemporaryDirectory() as folder:
            table.save(Path(folder), "crowd", [first], add=True)
            table.save(Path(folder), "crowd", [again], add=True)
            both = Row("crowd", "a", "tokens/s", True, [1.0, 3.0, 4.0], [2.0, 5.0, 6.0], [0.0, 0.1, 0.2])
            self.assertEqual(table.load(Path(folder), ["crowd"]), [both])
            table.save(Path(folder), "crowd", [other], add=True)
            self.assertEqual(table.load(Path(folder), ["crowd"]), [other])


class Turns(unittest.TestCase):
    def turns(self, most_foreign, retries):
        asked, row = [], Row("s", "m", "tokens/s", True)
        engines = [lambda i, name=name: asked.append((name, i)) or [float(i)] for name in ("throng", "peer")]
        in_turn(Manner(2, most_foreign, 0, retries), [row], *engines)
        return asked, row

    def test_the_engines_take_turns_at_going_first(self):
        asked, row = self.turns(most_foreign=math.inf, retries=5)
        self.assertEqual(asked, [("throng", 1), ("peer", 1), ("peer", 2), ("throng", 2)])
        self.assertEqual((row.throng, row.peer), ([1, 2], [1, 2]))

    def test_a_disturbed_round_is_measured_again_up_to_a_limit(self):
        _, row = self.turns(most_foreign=-1, retries=3)
        self.assertEqual(row.throng, [4, 5])
        self.assertEqual(len(row.foreign), 2)


class Load(unittest.TestCase):
    def test_prompts_have_their_length_and_repeat_with_their_seed(self):
        one, other = load.Prompts(7), load.Prompts(7)
        start = one(10)
        self.assertEqual(start, other(10))
        self.assertEqual(one(15, start)[:10], start)
        self.assertEqual(len(other(15, start)), 15)

    def test_gaps_are_beside_the_intruder_until_its_first_token(self):
        stream, intruder = load.Stream("m", [], 4), load.Stream("m", [], 1)
        stream.times = [1.0, 2.0, 5.0, 6.0, 8.0]
        intruder.sent, intruder.times = 2.5, [5.5]
        self.assertEqual(load.gaps_around([stream], intruder), ([3.0, 1.0], [1.0, 2.0]))


class Patch(unittest.TestCase):
    def test_the_tile_configuration_is_kept_once(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "mmq.cpp"
            source.write_text(f"    tc.start_row = 0;\n{peer.TILE_CONFIG}\n    done = true;\n")
            for _ in range(2):
                peer.keep_tile_config(source)
            text = source.read_text()
        self.assertEqual(text.count("memory"), 1)
        self.assertLess(text.index("memory"), text.index("_tile_loadconfig"))


if __name__ == "__main__":
    unittest.main()
