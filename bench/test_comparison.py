"""Tests of the comparison. Needs nothing but Python: `python3 -m unittest discover -s bench`."""

import http.server
import json
import math
import tempfile
import threading
import unittest
from pathlib import Path
from types import SimpleNamespace

import load
import speculation
from comparison import llama_cpp_build, reading, table
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

    def test_ik_llama_cpp_gives_the_same_of_its_own_tools(self):
        self.assertAlmostEqual(reading.ik_bench(printed("ik-llama-bench")), 40.820463)
        text = printed("ik-llama-batched-bench")
        self.assertEqual(reading.ik_batched_bench(text, 2), {"decode": 7912.96, "all_s": 0.002})
        with self.assertRaises(ValueError):
            reading.ik_batched_bench(text, 3)

    def test_throng_bench_gives_both_speeds(self):
        text = printed("throng-bench")
        speeds = reading.throng_bench(text)
        self.assertAlmostEqual(speeds["prefill"], 3316.213381750049)
        self.assertAlmostEqual(speeds["decode"], 579.0977001520904)
        self.assertAlmostEqual(speeds["all_s"], 0.020010506)
        self.assertNotIn("decode_limit", speeds)
        with_limit = text.replace("{", '{"decode_limit":{"tokens_per_s":900.5},', 1)
        self.assertEqual(reading.throng_bench(with_limit)["decode_limit"], 900.5)


class Rows(unittest.TestCase):
    def test_a_ratio_above_one_is_throng_ahead(self):
        values = {"Throng": [20, 30, 60], "llama.cpp": [10, 10, 10]}
        speed, wait = (Row("s", "m", "of something", higher, values) for higher in (True, False))
        self.assertEqual(speed.ratios("llama.cpp"), [2, 3, 6])
        self.assertEqual(speed.ratio("llama.cpp"), 3)
        self.assertAlmostEqual(wait.ratio("llama.cpp"), 1 / 3)

    def test_the_table_shows_medians_spread_limits_and_noise(self):
        three = {"Throng": [200, 300, 600], "llama.cpp": [100, 100, 100], "ik": [200, 200, 200]}
        quiet = Row("crowd", "m", "tokens/s", True, three, [0.01, 0.02, 0.9], limit=400)
        noisy = Row("crowd", "m", "ms", False, {"Throng": [1, 1, 1], "llama.cpp": [1.5] * 3}, [0.2, 0.2, 0.01])
        lines = table.table([quiet, noisy], most_foreign=0.05).splitlines()
        ratios = "3.00× (2.00–6.00 of 3) | 1.50× (1.00–3.00 of 3)"
        self.assertEqual(lines[2], f"| crowd | m | tokens/s | 300 | 100 | 200 | {ratios} | 400 | 75% | 2% |")
        self.assertEqual(lines[3], "| crowd | m | ms | 1 | 1.5 |  | 1.50× (1.50–1.50 of 3) |  |  |  | 20% noisy |")
        self.assertEqual({line.count("|") for line in lines}, {12})

    def row(self, model, ours, theirs, measure="tokens/s", foreign=(0.0,)):
        return Row("crowd", model, measure, True, {"Throng": list(ours), "llama.cpp": list(theirs)}, list(foreign))

    def test_saved_rows_come_back_in_the_sections_order(self):
        row = self.row("m", [1.0], [2.0])
        with tempfile.TemporaryDirectory() as folder:
            table.save(Path(folder), "crowd", [row])
            table.save(Path(folder), "decode", [])
            self.assertEqual(table.load(Path(folder), ["decode", "crowd", "never"]), [row])

    def test_a_model_measured_again_replaces_only_its_own_rows(self):
        first, second = (self.row(model, [1.0], [2.0]) for model in "ab")
        again = self.row("a", [3.0], [2.0])
        with tempfile.TemporaryDirectory() as folder:
            for row in (first, second, again):
                table.save(Path(folder), "crowd", [row])
            self.assertEqual(table.load(Path(folder), ["crowd"]), [second, again])

    def test_added_rounds_are_appended_to_those_of_the_same_row(self):
        first, other = (self.row("a", [1.0], [2.0], measure) for measure in ("tokens/s", "ms"))
        again = self.row("a", [3.0, 4.0], [5.0, 6.0], foreign=[0.1, 0.2])
        with tempfile.TemporaryDirectory() as folder:
            table.save(Path(folder), "crowd", [first], add=True)
            table.save(Path(folder), "crowd", [again], add=True)
            both = self.row("a", [1.0, 3.0, 4.0], [2.0, 5.0, 6.0], foreign=[0.0, 0.1, 0.2])
            self.assertEqual(table.load(Path(folder), ["crowd"]), [both])
            table.save(Path(folder), "crowd", [other], add=True)
            self.assertEqual(table.load(Path(folder), ["crowd"]), [other])


class Turns(unittest.TestCase):
    def turns(self, names, most_foreign, retries):
        asked, row = [], Row("s", "m", "tokens/s", True)
        engines = {name: lambda i, name=name: asked.append((name, i)) or [float(i)] for name in names}
        in_turn(Manner(2, most_foreign, 0, retries), [row], engines)
        return asked, row

    def test_the_engines_take_turns_at_going_first(self):
        asked, row = self.turns(["Throng", "a", "b"], most_foreign=math.inf, retries=5)
        self.assertEqual(asked, [("Throng", 1), ("a", 1), ("b", 1), ("a", 2), ("b", 2), ("Throng", 2)])
        self.assertEqual(row.values, {"Throng": [1, 2], "a": [1, 2], "b": [1, 2]})

    def test_a_disturbed_round_is_measured_again_up_to_a_limit(self):
        _, row = self.turns(["Throng", "a"], most_foreign=-1, retries=3)
        self.assertEqual(row.values["Throng"], [4, 5])
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


    def test_vectors_that_a_server_refuses_or_leaves_out_are_an_error(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
                self.send_response(200 if texts[0] else 400)
                self.end_headers()
                self.wfile.write(json.dumps({"data": [{}] * min(len(texts), 2)}).encode())

            def log_message(self, *_):
                pass

        with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            load.embed(server.server_port, "m", [[1], [2]])
            for refused in [[[]], [[1], [2], [3]]]:
                with self.assertRaises(RuntimeError):
                    load.embed(server.server_port, "m", refused)
            server.shutdown()


class Patch(unittest.TestCase):
    def test_the_tile_configuration_is_kept_once(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "mmq.cpp"
            source.write_text(f"    tc.start_row = 0;\n{llama_cpp_build.TILE_CONFIG}\n    done = true;\n")
            for _ in range(2):
                llama_cpp_build.keep_tile_config(source)
            text = source.read_text()
        self.assertEqual(text.count("memory"), 1)
        self.assertLess(text.index("memory"), text.index("_tile_loadconfig"))


class Speculation(unittest.TestCase):
    def test_speeds_are_compared_in_pairs_and_drafts_counted_by_token(self):
        work = lambda speed, **counts: SimpleNamespace(speed=speed, n_tokens=10, **counts)
        pairs = [(work(10), work(15, n_drafts=4, n_right=3)), (work(20), work(50, n_drafts=6, n_right=2))]
        told = speculation.line("copy", pairs)
        self.assertEqual(told["ratio"], [2.0, 1.5, 2.5])
        self.assertEqual((told["drafts_per_token"], told["acceptance"]), (0.5, 0.5))
        none = speculation.line("write", [(work(10), work(10, n_drafts=0, n_right=0))])
        self.assertIsNone(none["acceptance"])

    def test_each_kind_of_work_has_prompts(self):
        for kind, prompts in speculation.works().items():
            self.assertEqual(len(prompts), len(speculation.STORIES), kind)


if __name__ == "__main__":
    unittest.main()
