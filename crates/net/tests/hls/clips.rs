//! Short clips made by ffmpeg, and what ffmpeg says about segments.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const TS: usize = 188;

/// Runs ffmpeg with arguments in one text; `None` if ffmpeg is not installed.
pub fn ffmpeg(arguments: &str) -> Option<Vec<u8>> {
    let output = Command::new("ffmpeg")
        .args("-v error -nostdin".split(' ').chain(arguments.split_whitespace()))
        .stdin(Stdio::null())
        .output()
        .ok()?;
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// A picture and a tone of so many seconds, 25 frames per second, a key frame every `distance` frames.
pub fn clip(seconds: u32, size: &str, distance: u32, more: &str) -> Option<Vec<u8>> {
    ffmpeg(&format!(
        "-f lavfi -i testsrc=size={size}:rate=25:duration={seconds} -f lavfi -i sine=duration={seconds} \
         -c:v libx264 -preset ultrafast -pix_fmt yuv420p -g {distance} -c:a aac {more} -f mpegts -"
    ))
}

pub fn pid(packet: &[u8]) -> u16 {
    u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2])
}

/// Where a packet's random-access flag is.
pub fn flags(packet: &mut [u8]) -> Option<&mut u8> {
    (packet[3] & 0x20 != 0 && packet[4] > 0).then(|| &mut packet[5])
}

/// A folder with a playlist of some segments, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tidegate-hls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Decodes all of a file. Returns its frames of the picture, or of the sound, and what the decoder complains about.
pub fn decode(path: &Path, streams: &str) -> (usize, String) {
    let output = Command::new("ffprobe")
        .args(["-v", "error", "-allowed_extensions", "ALL", "-select_streams", streams])
        .args(["-show_entries", "frame=media_type", "-of", "csv=p=0"])
        .arg(path)
        .output()
        .unwrap();
    let frames = String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()).count();
    (frames, String::from_utf8_lossy(&output.stderr).into_owned())
}
