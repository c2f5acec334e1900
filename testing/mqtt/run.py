"""Checks the conformance of a broker with MQTT 3.1.1 and 5.0.

    python run.py --port 1883 [--host H] [--only PART] [--known mosquitto] [--list]

Every test has names of its own, so they run side by side: most of their time is waiting. The last line counts; each failure
is listed by its name, with the statements of the specifications that it is about. Exit status 1 when there is one.
"""

import argparse
import concurrent.futures
import faulthandler
import importlib
import pathlib
import sys
import time
import traceback

import broker
import differences

# The number of concurrent tests. Each has a few connections.
WORKERS = 24
# The timeout of a run: it ends with a stack trace of every thread.
TIME_MAX_S = 240


def run_one(options, name, function, v, spec):
    context = broker.Context(options.host, options.port, v, (options.user, options.password))
    context.options = options
    start = time.monotonic()
    problem = None
    try:
        function(context)
    except Exception as error:  # Whatever it is, it is this test's result.
        line = [frame for frame in traceback.extract_tb(error.__traceback__) if "/test_" in frame.filename]
        place = f"{pathlib.Path(line[-1].filename).name}:{line[-1].lineno}" if line else "?"
        problem = f"{type(error).__name__}: {error} ({place})"
    try:
        context.finish()
    except Exception as error:
        problem = problem or f"cleaning up: {type(error).__name__}: {error}"
    return name, problem, spec, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--user")
    parser.add_argument("--password")
    parser.add_argument("--only", default="", help="tests whose name contains this")
    parser.add_argument("--known", default="", help="a broker whose documented differences are no failures")
    parser.add_argument("--denied", help="a topic filter that this client may not subscribe to")
    parser.add_argument("--list", action="store_true", help="print the tests and what they ask about")
    parser.add_argument("--times", action="store_true", help="print how long each took")
    options = parser.parse_args()

    for file in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(file.stem)
    tests = [each for each in broker.TESTS if options.only in each[0]]
    if options.list:
        for name, _, _, spec in tests:
            print(f"{name:60} {spec}")
        return 0
    faulthandler.dump_traceback_later(TIME_MAX_S, exit=True)
    known = differences.KNOWN.get(options.known, {})
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(lambda each: run_one(options, *each), tests))
    failed = excused = 0
    for name, problem, spec, seconds in results:
        bare = name.split("[")[0]
        reason = known.get(name) or known.get(bare)
        if problem and reason:
            excused += 1
            print(f"known   {name}: {reason}")
        elif problem:
            failed += 1
            print(f"FAILED  {name}: {problem} [{spec}]")
        elif options.times:
            print(f"passed  {name}: {seconds:.1f} s")
    print(f"{len(results)} tests, {len(results) - failed - excused} passed, {failed} failed, {excused} known differences")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
