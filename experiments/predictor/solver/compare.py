"""Time per solve and objective of tidegate, IPOPT (casadi), PIQP and Clarabel on the same random instances.

    cargo build --release
    python3 -m venv .venv && .venv/bin/pip install numpy scipy casadi piqp clarabel
    .venv/bin/python experiments/predictor/solver/compare.py [--sizes 3,30,300] [--instances 5]

One core. Times are processor time of the solve alone, without building the problem; tidegate's is wall-clock time
as `tidegate predictor solve --json` reports it, the least of five solves, since others may use the machine too.
Medians over the instances. IPOPT: sparse, exact Hessian,
bound_relax_factor 0. The objective is the prototype's, in scaled quantities; the difference is to tidegate's.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import casadi
import clarabel
import numpy
import piqp
from scipy import sparse

HORIZON, DT, SCALING, S_MAX, CAPACITY, OVERFLOW = 10, 0.04, 50.0, 100.0, 830.0, 1e5
REPEATS = 5
STEPS = numpy.arange(HORIZON)
DISCOUNT = numpy.maximum(3.0**-STEPS, 1e-6)


def instance(n, rng):
    """A relay of 4 Mbit/s whose circuits have something queued here or at the predecessor, or are idle."""
    fair = CAPACITY / n
    left = [CAPACITY, CAPACITY]
    problem = dict(problem="prototype", capacity=CAPACITY, s_max=S_MAX, scaling=SCALING, horizon=HORIZON, dt=DT,
                   s0=[], vmax=[], ssrc=[], vsrc=[], first_hop=[])
    for _ in range(n):
        busy = float(rng.random() >= 0.2)
        problem["s0"].append(busy * rng.uniform(0, 4) * fair * DT)
        problem["first_hop"].append(bool(rng.random() < 1 / 3))
        limit, plan, stock = rng.uniform(0.3, 3), rng.uniform(0, 1.5), rng.uniform(0, 20)
        problem["vmax"].append(list(limit * fair * rng.uniform(0.8, 1.2, HORIZON)))
        rates = busy * plan * fair * rng.uniform(0.8, 1.2, HORIZON)
        for step in range(2):
            rates[step] = min(rates[step], left[step])
            left[step] -= rates[step]
        problem["vsrc"].append(list(rates))
        problem["ssrc"].append([busy * stock * fair * DT] * HORIZON)
    return problem


def program(problem):
    """min 1/2 x'Px + q'x + constant, equal x = e, less x <= u, in scaled quantities.

    Per circuit: v_in, v_out (N each), s_1..s_N, d_1..d_N, eps_0..eps_N."""
    n, capacity = len(problem["s0"]), CAPACITY / SCALING
    width = 5 * HORIZON + 1
    at = lambda i, kind, k: i * width + kind * HORIZON + k
    s0, vmax = numpy.array(problem["s0"]) / SCALING, numpy.array(problem["vmax"]) / SCALING
    ssrc, vsrc = numpy.array(problem["ssrc"]) / SCALING, numpy.array(problem["vsrc"]) / SCALING
    diagonal, linear, constant = numpy.zeros(n * width), numpy.zeros(n * width), 0.0
    equal, less = Rows(n * width), Rows(n * width)
    for i in range(n):
        for k in range(HORIZON):
            for kind, weight in ((0, 10.0), (1, 1.0)):
                weight *= DISCOUNT[k] / n
                diagonal[at(i, kind, k)] = 2 * weight
                linear[at(i, kind, k)] = -2 * weight * capacity
                constant += weight * capacity**2
            before = [(at(i, 2, k - 1), -1.0)] if k else []
            equal.add([(at(i, 2, k), 1.0), (at(i, 0, k), -DT), (at(i, 1, k), DT)] + before, 0 if k else s0[i])
            before = [(at(i, 3, k - 1), -1.0)] if k else []
            equal.add([(at(i, 3, k), 1.0), (at(i, 0, k), -DT)] + before, -DT * vsrc[i, k])
            for kind in (0, 1, 2):
                less.add([(at(i, kind, k), -1.0)], 0.0)
            less.add([(at(i, 1, k), 1.0)], vmax[i, k])
            less.add([(at(i, 2, k), 1.0), (at(i, 4, k + 1), -1.0)], S_MAX / SCALING)
            less.add([(at(i, 3, k), 1.0)], ssrc[i, min(k + 1, HORIZON - 1)])
            if k < 2 and not problem["first_hop"][i]:
                equal.add([(at(i, 0, k), 1.0)], vsrc[i, k])
        less.add([(at(i, 4, 0), -1.0)], S_MAX / SCALING - s0[i])
        for k in range(HORIZON + 1):
            linear[at(i, 4, k)] = OVERFLOW
            less.add([(at(i, 4, k), -1.0)], 0.0)
    for k in range(HORIZON):
        for kind in (0, 1):
            less.add([(at(i, kind, k), 1.0) for i in range(n)], capacity)
    return sparse.diags(diagonal, format="csc"), linear, constant, *equal.matrix(), *less.matrix()


class Rows:
    def __init__(self, width):
        self.width, self.row, self.col, self.value, self.bound = width, [], [], [], []

    def add(self, terms, bound):
        for col, value in terms:
            self.row.append(len(self.bound))
            self.col.append(col)
            self.value.append(value)
        self.bound.append(bound)

    def matrix(self):
        shape = (len(self.bound), self.width)
        return sparse.csc_matrix((self.value, (self.row, self.col)), shape=shape), numpy.array(self.bound)


def timed(call):
    begin = time.process_time()
    result = call()
    return time.process_time() - begin, result


def by_ipopt(quadratic, linear, constant, equal, e, less, u):
    # A row with one variable is a bound on it, as a modeller would write it.
    lower, upper = numpy.full(len(linear), -numpy.inf), numpy.full(len(linear), numpy.inf)
    single = numpy.diff(less.tocsr().indptr) == 1
    rows = less.tocsr()
    for row in numpy.flatnonzero(single):
        col, value = rows.indices[rows.indptr[row]], rows.data[rows.indptr[row]]
        if value > 0:
            upper[col] = min(upper[col], u[row] / value)
        else:
            lower[col] = max(lower[col], u[row] / value)
    x = casadi.MX.sym("x", len(linear))
    general = sparse.vstack([equal, rows[~single]], format="csc")
    nlp = dict(x=x, f=casadi.bilin(casadi.DM(quadratic), x, x) / 2 + casadi.dot(casadi.DM(linear), x),
               g=casadi.mtimes(casadi.DM(general), x))
    options = {"print_time": False, "ipopt": {"print_level": 0, "sb": "yes", "bound_relax_factor": 0.0}}
    solver = casadi.nlpsol("solver", "ipopt", nlp, options)
    low = numpy.concatenate([e, numpy.full((~single).sum(), -numpy.inf)])
    high = numpy.concatenate([e, u[~single]])
    seconds, result = timed(lambda: solver(x0=0, lbx=lower, ubx=upper, lbg=low, ubg=high))
    return seconds, float(result["f"]) + constant, solver.stats()["return_status"]


def by_piqp(quadratic, linear, constant, equal, e, less, u):
    solver = piqp.SparseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-8
    solver.settings.check_duality_gap = True

    def solve():
        solver.setup(quadratic, linear, equal, e, less, None, u)
        return solver.solve()

    seconds, status = timed(solve)
    x = solver.result.x
    return seconds, float(x @ (quadratic @ x) / 2 + linear @ x) + constant, str(status).split(".")[-1]


def by_clarabel(quadratic, linear, constant, equal, e, less, u):
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    rows, bounds = sparse.vstack([equal, less], format="csc"), numpy.concatenate([e, u])
    cones = [clarabel.ZeroConeT(len(e)), clarabel.NonnegativeConeT(len(u))]
    seconds, solution = timed(
        lambda: clarabel.DefaultSolver(quadratic, linear, rows, bounds, cones, settings).solve())
    return seconds, solution.obj_val + constant, str(solution.status)


SOLVERS = {"IPOPT": by_ipopt, "PIQP": by_piqp, "Clarabel": by_clarabel}


def by_tidegate(binary, problems):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(problems, file)
        file.flush()
        command = [binary, "predictor", "solve", file.name, "--json"]
        rounds = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(REPEATS)]
    return [min(answers, key=lambda answer: answer["seconds"]) for answers in zip(*rounds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,3,10,30,100,300")
    parser.add_argument("--instances", type=int, default=9)
    parser.add_argument("--binary", type=Path, default="target/release/tidegate")
    arguments = parser.parse_args()
    print(f"{'n':>5} {'solver':>10} {'ms':>10} {'times ours':>10} {'objective off':>14}  status")
    for n in map(int, arguments.sizes.split(",")):
        rng = numpy.random.default_rng(n)
        problems = [instance(n, rng) for _ in range(arguments.instances)]
        answers = by_tidegate(arguments.binary, problems)
        ours = statistics.median(answer["seconds"] for answer in answers)
        fallbacks = sum(answer["fallback"] for answer in answers)
        print(f"{n:>5} {'tidegate':>10} {ours * 1e3:>10.3f} {1:>10} {'':>14}  {fallbacks} safe rates", flush=True)
        programs = [program(problem) for problem in problems]
        for name, solve in SOLVERS.items():
            results = [solve(*parts) for parts in programs]
            seconds = statistics.median(result[0] for result in results)
            off = max(abs(result[1] - answer["objective"]) / max(answer["objective"], 1e-3) for result, answer in zip(results, answers))
            status = ", ".join(sorted({result[2] for result in results}))
            print(f"{n:>5} {name:>10} {seconds * 1e3:>10.3f} {seconds / ours:>10.1f} {off:>14.1e}  {status}", flush=True)


if __name__ == "__main__":
    main()
