//! Kafka's hash of keys, by which its default partitioner selects a partition.

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;

/// Return Kafka's 32-bit murmur2 hash, as signed in Java.
pub fn murmur2(data: &[u8]) -> i32 {
    let mut hash = SEED ^ data.len() as u32;
    let words = data.chunks_exact(4);
    let tail = words.remainder();
    for word in words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        let bytes = tail.iter().rev();
        hash ^= bytes.fold(0, |number, &byte| number << 8 | u32::from(byte));
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    (hash ^ hash >> 15) as i32
}
