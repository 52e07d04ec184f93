"""Video clips as recorders write them: cut, fragmented, trimmed, of a variable frame rate, of an unusual size."""

from fractions import Fraction

import numpy as np
import pytest
from PIL import Image, features

from dataset.media import MediaError, load_video

av = pytest.importorskip("av")


def write(path, codec="mpeg4", times=range(0, 4000, 100), rate=10, sound=0, movflags=None, size=(64, 32)):
    """A clip shown at `times` (ms): the upper half grows brighter, the lower is noise. `sound`: seconds of silence."""
    noise = np.random.default_rng(0)
    with av.open(str(path), "w", options={"movflags": movflags} if movflags else {}) as container:
        stream = container.add_stream(codec, rate=rate, options={"g": "10"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        voice = container.add_stream("aac", rate=8000, layout="mono") if sound else None
        for number, time in enumerate(times):
            array = np.full((*size[::-1], 3), 255 * number // (len(times) - 1), dtype=np.uint8)
            array[16:] = noise.integers(0, 255, array[16:].shape)
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        for number in range(int(sound * 8000 / 1024)):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, number * 1024
            container.mux(voice.encode(frame))
        if voice:
            container.mux(voice.encode())
    return path


@pytest.mark.parametrize("share", [0.5, 0.8])
@pytest.mark.parametrize(
    ("codec", "ending"), [("mpeg4", "mkv"), ("libvpx-vp9", "webm"), ("flv1", "flv"), ("mpeg4", "avi")]
)
def test_half_a_file_is_not_a_shorter_clip(tmp_path, codec, ending, share):
    whole = write(tmp_path / f"whole.{ending}", codec)
    assert load_video(whole)[-1].getpixel((0, 0))[0] > 240
    (tmp_path / f"cut.{ending}").write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
    with pytest.raises(MediaError, match=rf"cut\.{ending} (is cut off: it has|cannot be decoded)"):
        load_video(tmp_path / f"cut.{ending}")


def test_sound_that_outlasts_the_picture_is_no_cut(tmp_path):
    assert len(load_video(write(tmp_path / "talk.mkv", sound=10))) == 8


@pytest.mark.parametrize("flags", ["frag_keyframe", "frag_keyframe+empty_moov", "dash"])
def test_every_fragment_of_an_mp4_counts(tmp_path, flags):
    frames = load_video(write(tmp_path / "stream.mp4", movflags=flags))
    assert (len(frames), frames.fps) == (8, pytest.approx(2, rel=0.01))
    assert frames[-1].getpixel((0, 0))[0] > 240


def test_a_variable_rate_gives_the_time_that_passed(tmp_path):
    """A recorder of a screen writes a frame when something moves, and names a rate of 1000."""
    path = write(tmp_path / "screen.mkv", times=[*range(0, 1000, 100), 5000, 9000], rate=1000)
    with av.open(str(path)) as container:
        assert container.streams.video[0].average_rate == 1000
    frames = load_video(path)
    assert (len(frames), frames.fps) == (12, pytest.approx(11 / 9))


def test_a_clip_trimmed_without_encoding_it_again_is_not_cut_off(tmp_path):
    """What a telephone's trim tool writes: the frames before the new start are there and not shown."""
    whole = write(tmp_path / "whole.mp4")
    with av.open(str(whole)) as source, av.open(str(tmp_path / "trimmed.mp4"), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                shift = int(Fraction(28, 10) / packet.time_base)
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, stream
                target.mux(packet)
    frames = load_video(tmp_path / "trimmed.mp4")
    brightness = [frame.getpixel((0, 0))[0] for frame in frames]
    assert len(frames) == 4
    assert brightness[0] > 150 and brightness[-1] > 240


def test_a_clip_that_changes_its_size_is_named(tmp_path):
    parts = [
        write(tmp_path / f"{size[0]}.mkv", "mjpeg", range(0, 1000, 100), size=size) for size in ((64, 32), (32, 64))
    ]
    with av.open(str(tmp_path / "call.mkv"), "w") as target:
        stream = None
        for number, part in enumerate(parts):
            with av.open(str(part)) as source:
                stream = stream or target.add_stream_from_template(source.streams.video[0])
                for packet in source.demux(video=0):
                    if packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + 1000 * number, packet.dts + 1000 * number
                        packet.stream = stream
                        target.mux(packet)
    with pytest.raises(MediaError, match=r"call\.mkv changes its size \(\[\(32, 64\), \(64, 32\)\]\): encode it anew"):
        load_video(tmp_path / "call.mkv")


def test_a_clip_too_narrow_for_the_processor_is_named(tmp_path):
    path = tmp_path / "strip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.pix_fmt = 802, 2, "yuv420p"
        for _ in range(4):
            container.mux(stream.encode(av.VideoFrame(802, 2, "yuv420p")))
        container.mux(stream.encode())
    with pytest.raises(MediaError, match=r"video .*strip\.mp4 is 802x2: no side may be over 200 times the other"):
        load_video(path)


# --- how a clip is shown ----------------------------------------------------------------------------------------------


def write_small(path, every=20, aspect=None, frames=40):
    """A clip of 10 frames per second with a key frame `every` so many; `aspect`: width over height of its pixels."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg2video" if path.suffix == ".mpg" else "mpeg4", rate=25 if aspect else 10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size, stream.codec_context.max_b_frames = every, 0
        if aspect:
            stream.codec_context.sample_aspect_ratio = aspect
        for number in range(frames):
            array = np.full((48, 64, 3), 255 * number // (frames - 1), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("ending", ["mp4", "mkv", "avi", "mpg"])
@pytest.mark.parametrize(
    ("aspect", "size"), [((2, 1), (128, 48)), ((1, 2), (64, 96)), ((16, 15), (68, 48)), ((1, 1), (64, 48))]
)
def test_pixels_that_are_not_square_are_shown_square(tmp_path, ending, aspect, size):
    if ending == "mpg":  # its header knows 4:3 and 16:9 of the whole picture alone
        aspect, size = (4, 3), (85, 48)
    frames = load_video(write_small(tmp_path / f"a.{ending}", aspect=Fraction(*aspect)))
    assert {frame.size for frame in frames} == {size}


def test_a_clip_filmed_upright_with_wide_pixels_is_stretched_before_it_is_turned(tmp_path):
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)
        stream.set_display_rotation(-90)
        for _ in range(4):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode())
    assert load_video(tmp_path / "a.mp4")[0].size == (48, 128)


# --- what is cut off, and what is not ---------------------------------------------------------------------------------


def without_first(source, target, packets):
    """The same stream without its first packets: what a recording of a broadcast begins with."""
    with av.open(str(source)) as whole, av.open(str(target), "w") as rest:
        stream = rest.add_stream_from_template(whole.streams.video[0])
        for number, packet in enumerate(whole.demux(video=0)):
            if packet.dts is not None and number >= packets:
                packet.stream = stream
                rest.mux(packet)
    return target


@pytest.mark.parametrize("ending", ["mkv", "ts"])
def test_a_recording_that_begins_between_two_key_frames_is_whole(tmp_path, ending):
    codec = "libx264"
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    whole = tmp_path / f"whole.{ending}"
    with av.open(str(whole), "w") as container:
        stream = container.add_stream(codec, rate=10, options={"x264-params": "keyint=20:scenecut=0:bframes=0"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(40):
            array = np.full((48, 64, 3), 255 * number // 39, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        container.mux(stream.encode())
    frames = load_video(without_first(whole, tmp_path / f"rest.{ending}", 1))
    assert (len(frames), frames.fps) == (4, pytest.approx(2))  # the 20 frames from the second key frame on
    assert 110 < frames[0].getpixel((0, 0))[0] < 150 and frames[-1].getpixel((0, 0))[0] > 240


def test_a_clip_that_loses_its_end_is_still_cut_off(tmp_path):
    """Packets that were overwritten with zeros: the container has them all, the decoder makes nothing of the last."""
    path = write_small(tmp_path / "a.mkv")
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for place, size in places[20:]:
        at = content.index(b"\x00\x00\x01\xb6", place)
        content[at : at + size] = bytes(min(size, len(content) - at))
    path.write_bytes(content)
    with pytest.raises(MediaError, match=r"a\.mkv (is cut off|cannot be decoded)"):
        load_video(path)


def test_decoders_speak_in_words_of_our_own(tmp_path):
    pictures = [Image.new("RGB", (64, 48), colour) for colour in ("red", "blue")]
    pictures[0].save(tmp_path / "a.webp", save_all=True, append_images=pictures[1:])
    (tmp_path / "page.mp4").write_bytes(b"<html></html>")
    for name in ("a.webp", "page.mp4"):
        with pytest.raises(
            MediaError, match=rf"video .*{name} cannot be decoded: .*; (replace the file|encode it anew)"
        ):
            load_video(tmp_path / name)
        with pytest.raises(MediaError) as raised:
            load_video(tmp_path / name)
        assert not any(word in str(raised.value) for word in ("Errno", "Error", "avcodec", "patches"))


def test_the_still_picture_of_an_animation_is_not_the_clip(tmp_path):
    if not features.check("avif"):
        pytest.skip("this Pillow writes no AVIF")
    pictures = [Image.new("L", (64, 48), 25 * number).convert("RGB") for number in range(10)]
    pictures[0].save(tmp_path / "a.avif", save_all=True, append_images=pictures[1:], duration=100)
    frames = load_video(tmp_path / "a.avif", fps=10)
    assert len(frames) == 10 and frames[-1].getpixel((0, 0))[0] > 200
