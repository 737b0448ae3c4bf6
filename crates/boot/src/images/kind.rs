//! What an image is, by its bytes: for lists that people read, never for a decision about a machine.

use super::StoreError;
use super::store::Image;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing that is known here: a disk image as it is written to a disk.
    Raw,
    /// Compressed by gzip: a disk image, or an initrd.
    Gzip,
    /// Compressed by something that the installer does not unpack; kernels read initrds of these.
    Zstd,
    Xz,
    /// A Linux kernel: a bzImage, or an arm64 Image.
    Kernel,
    /// A cpio archive, as initrds begin.
    Initrd,
    /// A program for UEFI firmware.
    Efi,
    /// iPXE: for BIOS, for UEFI, or one of its scripts.
    Ipxe,
    /// The disk does not give its bytes: verify it.
    Unreadable,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Raw => "raw",
            Kind::Gzip => "gzip",
            Kind::Zstd => "zstd",
            Kind::Xz => "xz",
            Kind::Kernel => "kernel",
            Kind::Initrd => "initrd",
            Kind::Efi => "efi",
            Kind::Ipxe => "ipxe",
            Kind::Unreadable => "unreadable",
        })
    }
}

/// All signs but one stand in the first of these bytes.
const HEAD: usize = 4096;
/// Where iPXE for UEFI says its name is anywhere; one that is larger is called an EFI program.
const LOADER_MAX: u64 = 4 << 20;

impl Kind {
    pub(super) fn of(image: &Image) -> Result<Self, StoreError> {
        let mut head = vec![0; HEAD];
        let filled = image.read_at(&mut head, 0)?;
        head.truncate(filled);
        let kind = Self::by_head(&head);
        if kind == Kind::Efi && image.bytes() <= LOADER_MAX {
            let mut whole = vec![0; usize::try_from(image.bytes()).unwrap_or(0)];
            let filled = image.read_at(&mut whole, 0)?;
            if has(&whole[..filled], b"iPXE") {
                return Ok(Kind::Ipxe);
            }
        }
        Ok(kind)
    }

    fn by_head(head: &[u8]) -> Self {
        let at = |offset: usize, sign: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(sign));
        // kernels first: to firmware, many of them are EFI programs too
        if at(0x1fe, b"\x55\xaa") && at(0x202, b"HdrS") || at(0x38, b"ARM\x64") {
            Kind::Kernel
        } else if at(0, b"\x1f\x8b") {
            Kind::Gzip
        } else if at(0, b"\x28\xb5\x2f\xfd") {
            Kind::Zstd
        } else if at(0, b"\xfd7zXZ\0") {
            Kind::Xz
        } else if at(0, b"070701") || at(0, b"070702") {
            Kind::Initrd
        } else if at(0, b"#!ipxe") || has(head, b"PXE->EB") {
            // the second is what its prefix for BIOS says on the screen
            Kind::Ipxe
        } else if at(0, b"MZ") && at(pe_offset(head), b"PE\0\0") {
            Kind::Efi
        } else {
            Kind::Raw
        }
    }
}

fn pe_offset(head: &[u8]) -> usize {
    let field = head.get(0x3c..0x40).and_then(|bytes| bytes.try_into().ok()).map_or(u32::MAX, u32::from_le_bytes);
    field as usize
}

fn has(bytes: &[u8], sign: &[u8]) -> bool {
    bytes.windows(sign.len()).any(|window| window == sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 2048];
        for (at, part) in parts {
            bytes[*at..*at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    #[test]
    fn heads_say_what_they_are() {
        let pe: [(usize, &[u8]); 3] = [(0, b"MZ"), (0x3c, &[0x80, 0, 0, 0]), (0x80, b"PE\0\0")];
        let kernel: [(usize, &[u8]); 2] = [(0x1fe, b"\x55\xaa"), (0x202, b"HdrS")];
        let cases: [(Vec<u8>, Kind); 11] = [
            (with(&pe), Kind::Efi),
            (with(&kernel), Kind::Kernel),
            (with(&[&pe[..], &kernel[..]].concat()), Kind::Kernel),
            (with(&[pe[0], pe[1], pe[2], (0x38, b"ARM\x64")]), Kind::Kernel),
            (b"\x1f\x8b\x08".to_vec(), Kind::Gzip),
            (b"\x28\xb5\x2f\xfd".to_vec(), Kind::Zstd),
            (b"070701000".to_vec(), Kind::Initrd),
            (b"#!ipxe\nshell\n".to_vec(), Kind::Ipxe),
            (with(&[(971, b"PXE->EB:")]), Kind::Ipxe),
            // a disk with a boot sector
            (with(&[(0x1fe, b"\x55\xaa")]), Kind::Raw),
            (Vec::new(), Kind::Raw),
        ];
        for (head, kind) in cases {
            assert_eq!(Kind::by_head(&head), kind, "{:?}", &head[..head.len().min(8)]);
        }
        // where its header would be is not in what was read
        assert_eq!(Kind::by_head(&with(&[(0, b"MZ"), (0x3c, &[255; 4])])), Kind::Raw);
    }
}
