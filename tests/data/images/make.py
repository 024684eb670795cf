#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images in the forms that files have, and what Pillow makes of them. Regenerate (pip install pillow==12.2.0 numpy==2.4.6):

    python3 tests/data/images/make.py

Writes beside itself the files; decoded.txt, a line "NAME WIDTH HEIGHT" for each, and decoded.rgb, their pixels one after the other;
resized.txt, lines "WIDTH HEIGHT WIDTH HEIGHT FILTER HASH": an image of noise (`noise`, drawn by the test likewise), the size it gets,
PIL.Image.Resampling, and FNV-1a of the pixels. Copies of the smallest files go to tests/fuzz/corpus/image.

The forms that Pillow cannot write are put together here: PNG of any depth, interlaced; markers of JPEG; containers of WebP; frames of
GIF. Where Pillow reads otherwise than common/image/image.h says (16 bits, CMYK without Adobe's marker, GIF frames that leave a part
of the screen free) the golden is computed here."""
import io
import random
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).parent
CORPUS = HERE.parent.parent / "fuzz" / "corpus" / "image"
CORPUS_BYTES_MAX = 700
W, H = 13, 10
rng = np.random.default_rng(7)
files = {}  # name: (bytes, pixels)


# ---- goldens ----

def on_white(rgba):
    white = Image.new("RGB", rgba.size, (255, 255, 255))
    white.paste(rgba, mask=rgba.getchannel("A"))
    return white


def by_pillow(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        return np.asarray(on_white(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def add(name, data, pixels=None):
    assert name not in files
    pixels = by_pillow(data) if pixels is None else pixels
    assert pixels.dtype == np.uint8 and pixels.shape[2] == 3
    files[name] = (data, pixels)


def smooth(width, height, channels):
    """Waves: what JPEG is made for."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [127.5 + 127.5 * np.sin(x / (2.1 + c) + y / (3.3 - c / 2) + c) for c in range(channels)]
    return np.stack(waves, -1).astype(np.uint8)


def drawn(*shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)


# ---- PNG ----

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]  # x, y, step x, step y


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_rows(samples, depth):
    """samples: [height, width, channels]; each row with a filter of its own."""
    out, above = b"", None
    for y, row in enumerate(samples):
        if depth == 16:
            packed = np.frombuffer(row.astype(">u2").tobytes(), np.uint8)
        elif depth == 8:
            packed = row.astype(np.uint8).reshape(-1)
        else:
            bits = np.unpackbits(row.astype(np.uint8).reshape(-1, 1), axis=1)[:, 8 - depth:]
            packed = np.packbits(bits.reshape(-1))
        kind = (y % 3) if depth >= 8 else 0  # none, sub, up
        step = samples.shape[2] * depth // 8
        before = np.concatenate([np.zeros(step, np.uint8), packed[:-step]]) if kind == 1 else None
        if kind == 2:
            before = above if above is not None else np.zeros_like(packed)
        out += bytes([kind]) + (packed - before if kind else packed).tobytes()
        above = packed
    return out


def png(samples, depth, color, palette=None, trns=None, interlaced=False, exif=None, exif_last=False):
    samples = samples.reshape(*samples.shape[:2], -1)
    height, width = samples.shape[:2]
    parts = [samples]
    if interlaced:
        parts = [samples[y::step_y, x::step_x] for x, y, step_x, step_y in PASSES]
    data = b"".join(png_rows(part, depth) for part in parts if part.size)
    exif = chunk(b"eXIf", exif) if exif else b""
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)) +
            (chunk(b"PLTE", palette) if palette else b"") + (chunk(b"tRNS", trns) if trns else b"") + (b"" if exif_last else exif) +
            chunk(b"IDAT", zlib.compress(data, 9)) + (exif if exif_last else b"") + chunk(b"IEND", b""))


def to_8_bits(samples):
    return ((samples.astype(np.uint32) * 255 + 32895) >> 16).astype(np.uint8)


def make_png():
    for depth in (1, 2, 4, 8):
        samples = rng.integers(0, 1 << depth, (H, W))
        palette = drawn(1 << depth, 3).tobytes()
        add(f"grey{depth}.png", png(samples, depth, GREY))
        add(f"palette{depth}.png", png(samples, depth, PALETTE, palette))
        add(f"palette{depth}-alpha.png", png(samples, depth, PALETTE, palette, drawn(max(1, (1 << depth) // 2)).tobytes()))
    samples = drawn(H, W)
    add("grey8-transparent.png", png(samples, 8, GREY, trns=struct.pack(">H", int(samples[2, 3]))))
    add("grey-alpha.png", png(drawn(H, W, 2), 8, GREY_ALPHA))
    add("rgb.png", png(drawn(H, W, 3), 8, RGB))
    samples = drawn(H, W, 3)
    add("rgb-transparent.png", png(samples, 8, RGB, trns=struct.pack(">HHH", *map(int, samples[4, 4]))))
    add("rgba.png", png(drawn(H, W, 4), 8, RGBA))
    add("one.png", png(drawn(1, 1, 3), 8, RGB))
    for color, channels in ((GREY, 1), (RGB, 3), (GREY_ALPHA, 2), (RGBA, 4)):
        samples = rng.integers(0, 65536, (H, W, channels))
        samples[0, :6, 0] = [0, 128, 129, 65407, 65408, 65535]  # borders of the rounding
        if channels in (1, 3):  # of no other color of the image
            trns = struct.pack(f">{channels}H", *map(int, samples[5, 5]))
        small = to_8_bits(samples)
        alpha = small[:, :, -1:] if channels in (2, 4) else None
        rgb = np.repeat(small[:, :, :1], 3, -1) if channels < 3 else small[:, :, :3]
        pixels = rgb if alpha is None else np.asarray(on_white(Image.fromarray(np.concatenate([rgb, alpha], -1), "RGBA")))
        add(f"deep{color}.png", png(samples, 16, color), pixels)
        add(f"deep{color}-interlaced.png", png(samples, 16, color, interlaced=True), pixels)
        if alpha is None:
            match = (samples == samples[5, 5]).all(-1)
            pixels = pixels.copy()
            pixels[match] = 255
            add(f"deep{color}-transparent.png", png(samples, 16, color, trns=trns), pixels)
    add("grey1-interlaced.png", png(rng.integers(0, 2, (H, W)), 1, GREY, interlaced=True))
    add("palette4-interlaced.png", png(rng.integers(0, 16, (H, W)), 4, PALETTE, drawn(16, 3).tobytes(), drawn(7).tobytes(), True))
    add("rgb-interlaced.png", png(drawn(H, W, 3), 8, RGB, interlaced=True))
    add("rgba-interlaced.png", png(drawn(H, W, 4), 8, RGBA, interlaced=True))
    add("small-interlaced.png", png(drawn(2, 3, 3), 8, RGB, interlaced=True))
    add("exif.png", png(drawn(3, 5, 3), 8, RGB, exif=exif_of(6)))
    add("exif-last.png", png(drawn(3, 5, 4), 8, RGBA, exif=exif_of(8, ">"), exif_last=True))


# ---- JPEG ----

def exif_of(orientation, order="<", n_before=2):
    """A TIFF header and a directory in which other entries come first."""
    entries = [(0x010e + i, 4, 1, struct.pack(order + "I", 7)) for i in range(n_before)]
    entries.append((0x0112, 3, 1, struct.pack(order + "HH", orientation, 0)))
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, len(entries)) + b"".join(
        struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries) + bytes(4)


def saved(image, kind, **how):
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def segments(data):
    """(marker, bytes) of a JPEG up to its first scan, and the rest."""
    at, found = 2, []
    while data[at + 1] != 0xda:
        n = 2 + struct.unpack(">H", data[at + 2:at + 4])[0]
        found.append((data[at + 1], data[at:at + n]))
        at += n
    return found, data[at:]


def make_jpeg():
    rgb, grey = Image.fromarray(smooth(W + 8, H + 9, 3)), Image.fromarray(smooth(W, H, 1)[:, :, 0])
    add("grey.jpg", saved(grey, "JPEG", quality=80))
    for name, subsampling in (("444", 0), ("422", 1), ("420", 2)):
        add(f"rgb-{name}.jpg", saved(rgb, "JPEG", quality=75, subsampling=subsampling))
    add("rgb-kept.jpg", saved(rgb, "JPEG", quality=75, keep_rgb=True))
    add("noise.jpg", saved(Image.fromarray(drawn(H, W, 3)), "JPEG", quality=50))
    add("one.jpg", saved(Image.fromarray(drawn(1, 1, 3)), "JPEG"))
    add("progressive.jpg", saved(rgb, "JPEG", quality=75, progressive=True))
    add("progressive-grey.jpg", saved(grey, "JPEG", quality=75, progressive=True))
    add("optimized.jpg", saved(rgb, "JPEG", quality=40, optimize=True))
    add("restart.jpg", saved(rgb, "JPEG", quality=75, restart_marker_blocks=1))
    add("restart-rows.jpg", saved(rgb, "JPEG", quality=75, progressive=True, restart_marker_rows=1))
    cmyk = saved(Image.fromarray(smooth(W, H, 4), "CMYK"), "JPEG", quality=80)
    add("cmyk.jpg", cmyk)
    add("cmyk-progressive.jpg", saved(Image.fromarray(smooth(W, H, 4), "CMYK"), "JPEG", quality=80, progressive=True))
    head, rest = segments(cmyk)
    adobe = [data for marker, data in head if marker == 0xee][0]
    assert adobe[4:9] == b"Adobe" and adobe[-1] == 0
    add("ycck.jpg", cmyk.replace(adobe, adobe[:-1] + b"\2"))  # the same numbers, said to be YCCK
    plain = cmyk.replace(adobe, b"")
    inks = 255 - np.asarray(Image.open(io.BytesIO(plain)))  # Pillow inverts these too
    add("cmyk-plain.jpg", plain, np.asarray(Image.fromarray(inks, "CMYK").convert("RGB")))
    small = Image.fromarray(smooth(9, 6, 3))
    for orientation in range(1, 9):
        exif = b"Exif\0\0" + exif_of(orientation, "<>"[orientation % 2])
        add(f"exif{orientation}.jpg", saved(small, "JPEG", quality=80, exif=exif))
    comment = b"\xff\xfe" + struct.pack(">H", 9) + b"comment"
    plain = saved(grey, "JPEG", quality=80)
    add("filled.jpg", plain[:2] + comment + b"\xff\xff\xff" + plain[2:] + b"what follows the end")


# ---- WebP ----

def riff(*chunks):
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def u24(*values):
    return b"".join(struct.pack("<I", value)[:3] for value in values)


def make_webp():
    rgb, rgba = Image.fromarray(smooth(W, H, 3)), Image.fromarray(smooth(W, H, 4))
    add("lossy.webp", saved(rgb, "WEBP", quality=70))
    add("lossless.webp", saved(Image.fromarray(drawn(H, W, 3)), "WEBP", lossless=True, exact=True))
    add("lossy-alpha.webp", saved(rgba, "WEBP", quality=70))
    add("lossless-alpha.webp", saved(Image.fromarray(drawn(H, W, 4)), "WEBP", lossless=True, exact=True))
    add("one.webp", saved(Image.fromarray(drawn(1, 1, 3)), "WEBP", lossless=True))
    add("exif.webp", saved(rgb, "WEBP", quality=50, exif=exif_of(7)))
    frames = [Image.fromarray(smooth(W, H, 4)[:, ::step]) for step in (1, -1)]
    add("animated.webp", saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True, exact=True))
    for name, channels in (("", 3), ("-alpha", 4)):  # a frame of 5 x 4 at (2, 4) of 12 x 10
        frame = saved(Image.fromarray(drawn(4, 5, channels)), "WEBP", lossless=True, exact=True)[12:]
        assert frame[:4] == b"VP8L"
        add(f"partial{name}.webp", riff(
            webp_chunk(b"VP8X", bytes([0x12, 0, 0, 0]) + u24(12 - 1, 10 - 1)), webp_chunk(b"ANIM", struct.pack("<IH", 0xff102030, 0)),
            webp_chunk(b"ANMF", u24(2 // 2, 4 // 2, 5 - 1, 4 - 1, 100) + b"\0" + frame)))


# ---- GIF ----

def gif_parts(samples, palette, **how):
    image = Image.fromarray(samples, "P")
    image.putpalette(palette)
    return saved(image, "GIF", optimize=False, **how)


def moved(gif, left, top, screen):
    """The frame at another place of a screen of this size."""
    at = gif.index(b"\x2c" + bytes(4) + gif[6:10])
    return gif[:6] + struct.pack("<HH", *screen) + gif[10:at + 1] + struct.pack("<HH", left, top) + gif[at + 5:]


def make_gif():
    palette = drawn(16, 3).tobytes()
    samples = rng.integers(0, 16, (H, W), dtype=np.uint8)
    plain = gif_parts(samples, palette, interlace=0)
    add("plain.gif", plain)
    large = gif_parts(rng.integers(0, 16, (18, 17), dtype=np.uint8), palette, interlace=1)  # smaller ones Pillow does not interlace
    assert large[large.index(b"\x2c" + bytes(4) + large[6:10]) + 9] & 0x40
    add("interlaced.gif", large)
    clear = gif_parts(samples, palette, transparency=int(samples[1, 1]), interlace=0)
    add("transparent.gif", clear)
    add("one.gif", gif_parts(samples[:1, :1], palette))
    image = Image.fromarray(samples, "P")
    image.putpalette(palette)
    add("animated.gif", saved(image, "GIF", save_all=True, append_images=[image.transpose(Image.Transpose.ROTATE_180)], loop=0))
    colors = np.frombuffer(palette, np.uint8).reshape(-1, 3)
    for name, data, frame in (("plain", plain, colors[samples]), ("clear", clear, by_pillow(clear))):
        pixels = np.full((H + 5, W + 4, 3), 255, np.uint8)
        pixels[2:2 + H, 3:3 + W] = frame
        add(f"partial-{name}.gif", moved(data, 3, 2, (W + 4, H + 5)), pixels)
    add("outside.gif", moved(plain, 0, 0, (W - 3, H - 2)))  # the frame is larger than the screen
    n_color = 2 << (plain[10] & 7)  # without a palette
    add("no-palette.gif", plain[:10] + bytes([plain[10] & 0x7f]) + plain[11:13] + plain[13 + 3 * n_color:], np.repeat(samples[:, :, None], 3, -1))


# ---- resizing ----

def noise(width, height):
    """Bytes, and every other 64 pixels only the values 0 and 255, so that sums leave the range."""
    x, out = np.uint32(width * 65536 + height), np.empty(width * height * 3, np.uint8)
    state = int(x)
    for i in range(out.size):
        state = (state * 1664525 + 1013904223) & 0xffffffff
        out[i] = (255 if state >> 31 else 0) if i // 192 % 2 else state >> 24
    return out.reshape(height, width, 3)


def fnv(data):
    x = 0xcbf29ce484222325
    for byte in data:
        x = (x ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return x


SIZES = [((8, 8), (8, 8)), ((8, 8), (16, 16)), ((16, 16), (8, 8)), ((7, 5), (13, 11)), ((13, 11), (7, 5)), ((1, 1), (5, 3)), ((5, 3), (1, 1)),
         ((1, 9), (4, 2)), ((9, 1), (2, 4)), ((10, 10), (10, 3)), ((10, 10), (3, 10)), ((10, 10), (10, 23)), ((10, 10), (23, 10)),
         ((200, 150), (7, 5)), ((300, 2), (3, 2)), ((2, 300), (2, 3)), ((150, 100), (112, 112)), ((31, 37), (224, 224)), ((97, 101), (96, 102)),
         ((97, 101), (98, 100)), ((255, 3), (1, 50)), ((3, 255), (50, 1)), ((64, 48), (51, 39)), ((100, 7), (33, 10))]


def make_resized():
    draw = random.Random(3)
    sizes = SIZES + [tuple((draw.randint(1, 60), draw.randint(1, 60)) for _ in range(2)) for _ in range(40)]
    lines = []
    for (width, height), to in sizes:
        image = Image.fromarray(noise(width, height))
        for kind in (Image.Resampling.NEAREST, Image.Resampling.LANCZOS, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC):
            lines.append(f"{width} {height} {to[0]} {to[1]} {int(kind)} {fnv(image.resize(to, kind).tobytes()):016x}\n")
    (HERE / "resized.txt").write_text("".join(lines))


def main():
    for part in (make_png, make_jpeg, make_webp, make_gif, make_resized):
        part()
    shutil.rmtree(CORPUS, ignore_errors=True)
    CORPUS.mkdir(parents=True)
    for path in HERE.iterdir():
        if path.suffix in (".png", ".jpg", ".webp", ".gif"):
            path.unlink()
    lines, pixels = [], b""
    for name, (data, array) in sorted(files.items()):
        (HERE / name).write_bytes(data)
        if len(data) <= CORPUS_BYTES_MAX:
            (CORPUS / name).write_bytes(data)
        lines.append(f"{name} {array.shape[1]} {array.shape[0]}\n")
        pixels += array.tobytes()
    (HERE / "decoded.txt").write_text("".join(lines))
    (HERE / "decoded.rgb").write_bytes(pixels)


if __name__ == "__main__":
    main()
