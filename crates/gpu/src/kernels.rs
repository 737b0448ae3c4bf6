//! What runs on the GPU, as PTX: the driver translates it for whatever GPU it finds. Two kernels, one that writes what
//! every 16 bytes are expected to hold and one that reads them and counts what differs.
//!
//! What is expected comes from the address and a seed of the run, so that no two places expect the same: memory that
//! answers under two addresses, or that an earlier run has written, is found out. `keep` and `flip` make the passes of
//! it: (all, none) as it is, (all, all) its complement, (none, none) zeros.

pub const FILL: &str = "fill";
pub const VERIFY: &str = "verify";
pub const THREADS: u32 = 256;

/// Each address's expected two words; `%at`n to `%lo`n and `%hi`n. Both are one-to-one in the address.
macro_rules! expected {
    ($($n:literal)*) => {
        concat!($(
            "xor.b64 %x", $n, ", %at", $n, ", %seed;\n",
            "mul.lo.u64 %x", $n, ", %x", $n, ", 0x9E3779B97F4A7C15;\n",
            "shr.u64 %lo", $n, ", %x", $n, ", 29;\n",
            "shl.b64 %hi", $n, ", %x", $n, ", 17;\n",
            "xor.b64 %lo", $n, ", %lo", $n, ", %x", $n, ";\n",
            "xor.b64 %hi", $n, ", %hi", $n, ", %x", $n, ";\n",
            "xor.b64 %hi", $n, ", %hi", $n, ", 0x51B54A32D192ED03;\n",
            "and.b64 %lo", $n, ", %lo", $n, ", %keep;\n",
            "and.b64 %hi", $n, ", %hi", $n, ", %keep;\n",
            "xor.b64 %lo", $n, ", %lo", $n, ", %flip;\n",
            "xor.b64 %hi", $n, ", %hi", $n, ", %flip;\n",
        )*)
    };
}

/// Compares what was read at `%at`n; the words that differ are counted, and the lowest address kept.
macro_rules! compare {
    ($place:literal, $($n:literal)*) => {
        concat!($(
            "xor.b64 %lo", $n, ", %lo", $n, ", %gotlo", $n, ";\n",
            "xor.b64 %hi", $n, ", %hi", $n, ", %gothi", $n, ";\n",
            "or.b64 %x", $n, ", %lo", $n, ", %hi", $n, ";\n",
            "setp.eq.u64 %same, %x", $n, ", 0;\n",
            "@%same bra $", $place, "_SAME", $n, ";\n",
            "setp.ne.u64 %odd, %lo", $n, ", 0;\n",
            "@%odd add.u64 %wrong, %wrong, 1;\n",
            "setp.ne.u64 %odd, %hi", $n, ", 0;\n",
            "@%odd add.u64 %wrong, %wrong, 1;\n",
            "min.u64 %first, %first, %at", $n, ";\n",
            "$", $place, "_SAME", $n, ":\n",
            "add.u32 %seen, %seen, 1;\n",
        )*)
    };
}

macro_rules! load {
    ($($n:literal)*) => {
        concat!($("ld.global.cs.v2.u64 {%gotlo", $n, ", %gothi", $n, "}, [%at", $n, "];\n",)*)
    };
}

/// Where a thread begins, where all end, and how far all of them reach in one step.
macro_rules! begin {
    ($kernel:literal) => {
        concat!(
            ".reg .b32 %block, %blocks, %threads, %thread, %seen, %other, %lane;\n",
            ".reg .b64 %base, %end, %seed, %keep, %flip, %step, %out, %wrong, %first, %wide, %ahead;\n",
            ".reg .b64 %at<4>, %x<4>, %lo<4>, %hi<4>, %gotlo<4>, %gothi<4>;\n",
            ".reg .pred %over, %same, %odd;\n",
            "ld.param.u64 %base, [",
            $kernel,
            "_base];\n",
            "ld.param.u64 %end, [",
            $kernel,
            "_bytes];\n",
            "ld.param.u64 %seed, [",
            $kernel,
            "_seed];\n",
            "ld.param.u64 %keep, [",
            $kernel,
            "_keep];\n",
            "ld.param.u64 %flip, [",
            $kernel,
            "_flip];\n",
            "add.u64 %end, %end, %base;\n",
            "mov.u32 %block, %ctaid.x;\n",
            "mov.u32 %blocks, %nctaid.x;\n",
            "mov.u32 %threads, %ntid.x;\n",
            "mov.u32 %thread, %tid.x;\n",
            "mul.wide.u32 %at0, %block, %threads;\n",
            "cvt.u64.u32 %wide, %thread;\n",
            "add.u64 %at0, %at0, %wide;\n",
            "shl.b64 %at0, %at0, 4;\n",
            "add.u64 %at0, %at0, %base;\n",
            "mul.wide.u32 %step, %blocks, %threads;\n",
            "shl.b64 %step, %step, 4;\n",
        )
    };
}

/// `fill(base, bytes, seed, keep, flip)`, `verify(base, bytes, seed, keep, flip, out)`; `out` is three words: how many
/// 16 bytes were compared, how many words of 8 differed, and the lowest address of one.
pub const PTX: &str = concat!(
    ".version 6.0\n.target sm_50\n.address_size 64\n",
    ".visible .entry fill(.param .u64 fill_base, .param .u64 fill_bytes, .param .u64 fill_seed, ",
    ".param .u64 fill_keep, .param .u64 fill_flip)\n{\n",
    begin!("fill"),
    "$FILL_NEXT:\n",
    "setp.ge.u64 %over, %at0, %end;\n",
    "@%over bra $FILL_END;\n",
    expected!(0),
    "st.global.cs.v2.u64 [%at0], {%lo0, %hi0};\n",
    "add.u64 %at0, %at0, %step;\n",
    "bra $FILL_NEXT;\n",
    "$FILL_END:\nret;\n}\n",
    ".visible .entry verify(.param .u64 verify_base, .param .u64 verify_bytes, .param .u64 verify_seed, ",
    ".param .u64 verify_keep, .param .u64 verify_flip, .param .u64 verify_out)\n{\n",
    begin!("verify"),
    "ld.param.u64 %out, [verify_out];\n",
    "mov.u64 %wrong, 0;\n",
    "mov.u64 %first, 0xFFFFFFFFFFFFFFFF;\n",
    "mov.u32 %seen, 0;\n",
    // four at a time, all on their way before the first is looked at
    "$FOUR_NEXT:\n",
    "add.u64 %at1, %at0, %step;\n",
    "add.u64 %at2, %at1, %step;\n",
    "add.u64 %at3, %at2, %step;\n",
    "setp.ge.u64 %over, %at3, %end;\n",
    "@%over bra $ONE_NEXT;\n",
    load!(0 1 2 3),
    expected!(0 1 2 3),
    compare!("FOUR", 0 1 2 3),
    "add.u64 %at0, %at3, %step;\n",
    "bra $FOUR_NEXT;\n",
    // and the rest one by one
    "$ONE_NEXT:\n",
    "setp.ge.u64 %over, %at0, %end;\n",
    "@%over bra $VERIFY_END;\n",
    load!(0),
    expected!(0),
    compare!("ONE", 0),
    "add.u64 %at0, %at0, %step;\n",
    "bra $ONE_NEXT;\n",
    "$VERIFY_END:\n",
    // a warp's counts in one, for one addition each
    "bar.sync 0;\n",
    "shfl.sync.bfly.b32 %other, %seen, 16, 31, 0xFFFFFFFF;\nadd.u32 %seen, %seen, %other;\n",
    "shfl.sync.bfly.b32 %other, %seen, 8, 31, 0xFFFFFFFF;\nadd.u32 %seen, %seen, %other;\n",
    "shfl.sync.bfly.b32 %other, %seen, 4, 31, 0xFFFFFFFF;\nadd.u32 %seen, %seen, %other;\n",
    "shfl.sync.bfly.b32 %other, %seen, 2, 31, 0xFFFFFFFF;\nadd.u32 %seen, %seen, %other;\n",
    "shfl.sync.bfly.b32 %other, %seen, 1, 31, 0xFFFFFFFF;\nadd.u32 %seen, %seen, %other;\n",
    "mov.u32 %lane, %laneid;\n",
    "setp.ne.u32 %odd, %lane, 0;\n",
    "@%odd bra $SEEN_TOLD;\n",
    "cvt.u64.u32 %wide, %seen;\n",
    "red.global.add.u64 [%out], %wide;\n",
    "$SEEN_TOLD:\n",
    "setp.eq.u64 %same, %wrong, 0;\n",
    "@%same bra $ALL_TOLD;\n",
    "red.global.add.u64 [%out+8], %wrong;\n",
    "red.global.min.u64 [%out+16], %first;\n",
    "$ALL_TOLD:\nret;\n}\n\0",
);

/// The same on the host, for a place that differed.
pub fn expected(address: u64, seed: u64, keep: u64, flip: u64) -> [u64; 2] {
    let x = (address ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    [(x ^ (x >> 29)) & keep ^ flip, (x ^ (x << 17) ^ 0x51B5_4A32_D192_ED03) & keep ^ flip]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_given_text_that_ends() {
        assert_eq!(PTX.matches('\0').count(), 1);
        assert!(PTX.ends_with('\0') && PTX.is_ascii());
        assert_eq!(PTX.matches(".visible .entry").count(), 2);
    }

    #[test]
    fn neighbours_and_passes_expect_different_words() {
        let (all, none) = (u64::MAX, 0);
        let at = |address| expected(address, 7, all, none);
        assert!((0..1000).all(|i| at(16 * i) != at(16 * (i + 1)) && at(16 * i)[0] != at(16 * i)[1]));
        assert_eq!(expected(4096, 7, all, all), at(4096).map(|word| !word));
        assert_eq!(expected(4096, 7, none, none), [0, 0]);
        assert_ne!(at(4096), expected(4096, 8, all, none), "another run");
    }
}
