# SPDX-License-Identifier: Apache-2.0
"""The card's clocks, power and temperature while a job runs, beside its figures: nvidia-smi samples them for the whole run, and
only reads. A figure of a card that was held back by heat or power is one of that card at that time."""
import subprocess

import store

EACH_MS = 200
FIELDS = "clocks.sm,power.draw,temperature.gpu,clocks_throttle_reasons.active"
REASONS = ((0x4, "power"), (0x8, "slowdown"), (0x20, "heat"), (0x40, "heat"), (0x80, "power brake"), (0x2, "clock setting"))  # NVML's bits
IDLE = 0x1


def sample(line):
    """(MHz, W, degrees, bits) of a line of nvidia-smi, or None."""
    try:
        mhz, watt, degrees, bits = (x.strip() for x in line.split(","))
        return float(mhz), float(watt), float(degrees), int(bits, 16)
    except ValueError:
        return None


def summary(samples):
    """Columns of a row: the slowest and fastest clock while the card worked, and what held it back."""
    busy = [s for s in samples if not s[3] & IDLE] or samples
    if not busy:
        return {}
    bits = 0
    for s in busy:
        bits |= s[3]
    held = list(dict.fromkeys(name for bit, name in REASONS if bits & bit))
    return {"SM MHz": f"{min(s[0] for s in busy):.0f} to {max(s[0] for s in busy):.0f}", "W": max(s[1] for s in busy),
            "degrees": max(s[2] for s in busy), "held back by": ", ".join(held) or "nothing"}


class Clocks:
    """Samples from here to the end of the block; since() has those that came after the last call. Without nvidia-smi none."""

    def __init__(self, work):
        self.path, self.at, self.process = work / "clocks", 0, None

    def __enter__(self):
        with open(self.path, "wb") as out:
            try:
                self.process = subprocess.Popen(["nvidia-smi", "-i", "0", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits", f"-lms={EACH_MS}"],
                                                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL,
                                                preexec_fn=store.die_with_parent)
            except OSError:
                pass
        return self

    def since(self):
        with open(self.path, "rb") as source:
            source.seek(self.at)
            text = source.read()
        text = text[:text.rfind(b"\n") + 1]  # whole lines
        self.at += len(text)
        return [s for s in map(sample, text.decode(errors="replace").splitlines()) if s]

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
