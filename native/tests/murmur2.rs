//! `murmur2` against results of Kafka's own tests (`UtilsTest.testMurmur2`).

#[path = "../src/murmur2.rs"]
mod murmur2;

use murmur2::murmur2;

#[test]
fn hashes_are_those_of_kafka() {
    let cases: [(&[u8], i32); 8] = [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (
            b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
            -58897971,
        ),
        (b"abc", 479470107),
        (b"", 275646681),
        (b"\xff\xfe\xfd", 998637092),
    ];
    for (data, expected) in cases {
        assert_eq!(murmur2(data), expected);
    }
}
