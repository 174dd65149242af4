"""Removes the exits with the largest weights from a consensus, to ask what happens without them.

Usage: python exits.py CONSENSUS[.xz] NUMBER > SMALLER
"""

import lzma
import sys

if len(sys.argv) != 3 or not sys.argv[2].isdigit():
    sys.exit(__doc__)
name, number = sys.argv[1], int(sys.argv[2])
entries, current = [], []
for line in (lzma.open if name.endswith(".xz") else open)(name, "rt"):
    if line.startswith("r ") or line.startswith("directory-footer"):
        entries.append(current)
        current = []
    current.append(line)
entries.append(current)
head, *relays, foot = entries


def weight(relay):
    """Weight of an exit; none for other relays."""
    flags = next(line for line in relay if line.startswith("s ")).split()
    if "Exit" not in flags or "BadExit" in flags:
        return 0
    return int(next(line for line in relay if line.startswith("w ")).split("Bandwidth=")[1].split()[0])


largest = sorted(relays, key=weight, reverse=True)[:number]
kept = [relay for relay in relays if relay not in largest]
sys.stdout.writelines(line for entry in [head, *kept, foot] for line in entry)
