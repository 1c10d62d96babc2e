//! ROCclr's blit kernels between buffers and images (HIP arrays).
//!
//! On a card an image is tiled. Here only these kernels ever look into one, so each image is simply kept row by row
//! from its start: that always fits, as tiling only adds padding. What HIP reads back from an array is what it wrote.

use super::copy::{self, Extent, Side};
use super::kernel_arguments::{Arguments, BlitError, plus, times};
use super::memory::{offset, u32_at};

/// An image as its resource descriptor tells it.
struct Image {
    /// Address of its memory.
    base: u64,
    /// Pixels in a row.
    width: u64,
    /// Rows in a slice.
    height: u64,
    /// Bytes of a pixel, if the format is one that HIP arrays have.
    pixel: Option<u64>,
}

/// Words of the object that an image argument points to: 8 of the hardware's resource descriptor, then the channel
/// type, channel order and width for the image built-ins (ROCr `image_manager_*.cpp`, `PopulateImageSrd`).
const DESCRIPTOR_BYTES: usize = 12 * 4;

impl Image {
    fn parse(descriptor: &[u8; DESCRIPTOR_BYTES]) -> Image {
        let word = |index: usize| u64::from(u32_at(descriptor, index * 4).unwrap_or(0));
        // SQ_IMG_RSRC_WORD0 and 1: address bits 47:8. WORD2: height - 1 from bit 14, on gfx9 to gfx11.
        let base = (word(0) | (word(1) & 0xff) << 32) << 8;
        let height = (word(2) >> 14 & 0x3fff) + 1;
        // hsa_ext_image_channel_type_t and hsa_ext_image_channel_order_t
        let channel = match word(8) {
            0 | 2 | 8 | 11 => Some(1),
            1 | 3 | 9 | 12 | 14 => Some(2),
            10 | 13 | 15 => Some(4),
            _ => None,
        };
        let channels = match word(9) {
            0 | 1 | 16 | 17 | 18 => Some(1),
            3 | 5 => Some(2),
            8..=11 | 14 | 15 => Some(4),
            _ => None,
        };
        let pixel = channel.zip(channels).map(|(bytes, count)| bytes * count);
        Image {
            base,
            width: word(10),
            height,
            pixel,
        }
    }

    /// The side of a copy that starts at a pixel.
    fn side(&self, [x, y, z, _]: [u64; 4], pixel: u64) -> Result<Side, BlitError> {
        let row_pitch = times(self.width, pixel)?;
        let slice_pitch = times(self.height, row_pitch)?;
        let origin = plus(
            plus(times(x, pixel)?, times(y, row_pitch)?)?,
            times(z, slice_pitch)?,
        )?;
        Ok(Side {
            start: offset(self.base, origin)?,
            row_pitch,
            slice_pitch,
        })
    }
}

fn extent([width, rows, slices, _]: [u64; 4], pixel: u64) -> Result<Extent, BlitError> {
    Ok(Extent {
        row_bytes: times(width, pixel)?,
        rows,
        slices,
    })
}

impl Arguments<'_> {
    fn image(&self, name: &'static str) -> Result<Image, BlitError> {
        let descriptor = self.memory.read_array(self.number(name)?)?;
        Ok(Image::parse(&descriptor))
    }

    /// The buffer's side: `origin.x` in loads, `pitch` in pixels. Also the bytes of a pixel.
    fn pixels(&self, buffer: u64, origin: &'static str) -> Result<(Side, u64), BlitError> {
        // Channels and bytes of each; a load is a pixel, but at most a word.
        let [channels, bytes, _, _] = self.int4("format")?;
        let pixel = times(channels, bytes)?;
        if !matches!(pixel, 1 | 2 | 4 | 8 | 16) {
            return Err(BlitError::Contradiction);
        }
        let [first, ..] = self.ulong4(origin)?;
        let [row, slice, ..] = self.ulong4("pitch")?;
        let start = offset(buffer, times(first, pixel.min(4))?)?;
        let (row_pitch, slice_pitch) = (times(row, pixel)?, times(slice, pixel)?);
        Ok((
            Side {
                start,
                row_pitch,
                slice_pitch,
            },
            pixel,
        ))
    }

    pub(super) fn copy_to_image(&self) -> Result<String, BlitError> {
        let (source, pixel) = self.pixels(self.number("src")?, "srcOrigin")?;
        let destination = self.image("dst")?.side(self.int4("dstOrigin")?, pixel)?;
        self.copy_pixels(source, destination, pixel)
    }

    pub(super) fn copy_from_image(&self) -> Result<String, BlitError> {
        let (destination, pixel) = self.pixels(self.number("dstUInt")?, "dstOrigin")?;
        let source = self.image("src")?.side(self.int4("srcOrigin")?, pixel)?;
        self.copy_pixels(source, destination, pixel)
    }

    pub(super) fn copy_image(&self) -> Result<String, BlitError> {
        let (from, to) = (self.image("src")?, self.image("dst")?);
        let pixel = to.pixel.filter(|pixel| from.pixel == Some(*pixel));
        let pixel = pixel.ok_or(BlitError::Contradiction)?;
        let source = from.side(self.int4("srcOrigin")?, pixel)?;
        let destination = to.side(self.int4("dstOrigin")?, pixel)?;
        self.copy_pixels(source, destination, pixel)
    }

    fn copy_pixels(
        &self,
        source: Side,
        destination: Side,
        pixel: u64,
    ) -> Result<String, BlitError> {
        let extent = extent(self.int4("size")?, pixel)?;
        copy::rectangle(self.memory, source, destination, extent)?;
        Ok(format!("{source:x?} -> {destination:x?}, {extent:?}"))
    }
}

#[cfg(test)]
mod tests;
