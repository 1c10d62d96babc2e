//! The functions that allocate: how the client is told to call them, what they take, and what frees it.

/// A request of the client, which gives the result the name `a`.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) function: &'static str,
    /// What has to be done before; each prints a line.
    pub(crate) setup: &'static [&'static str],
    pub(crate) command: String,
    /// What it takes.
    pub(crate) bytes: u64,
    /// The functions that may free it.
    pub(crate) frees: &'static [&'static str],
}

const MEMORY: &[&str] = &["free:a", "free_async:a"];
const HANDLE: &[&str] = &["release:a"];
const ARRAY: &[&str] = &["free_array:a", "array_destroy:a"];
const MIPMAPPED: &[&str] = &["free_mipmapped:a", "mipmapped_destroy:a"];

/// Of the runtime's rows, unless a test sets another.
pub(crate) const PITCH: u64 = 256;
/// The width of rows here, which is not a multiple of any pitch.
const WIDTH: u64 = 1000;

fn request(function: &'static str, command: &str, bytes: u64, frees: &'static [&str]) -> Request {
    Request {
        function,
        setup: &[],
        command: command.to_owned(),
        bytes,
        frees,
    }
}

/// One request for each function. `pitch`: of which a row's length is a multiple.
pub(crate) fn one_of_each(pitch: u64) -> Vec<Request> {
    let row = WIDTH.next_multiple_of(pitch);
    let pool = Request {
        setup: &["default_pool:p:0"],
        ..request(
            "hipMallocFromPoolAsync",
            "from_pool:a:1000003:p",
            1_000_003,
            MEMORY,
        )
    };
    vec![
        request("hipMalloc", "malloc:a:1000003", 1_000_003, MEMORY),
        request(
            "hipExtMallocWithFlags",
            "ext:a:1000003:1",
            1_000_003,
            MEMORY,
        ),
        request("hipMallocManaged", "managed:a:1000003", 1_000_003, MEMORY),
        request("hipMallocAsync", "async:a:1000003", 1_000_003, MEMORY),
        pool,
        request("hipMemCreate", "create:a:1003520:0", 1_003_520, HANDLE),
        request("hipMallocPitch", "pitch:a:1000:7", row * 7, MEMORY),
        request("hipMemAllocPitch", "mem_pitch:a:1000:7:16", row * 7, MEMORY),
        request("hipMalloc3D", "malloc3d:a:1000:7:3", row * 7 * 3, MEMORY),
        request(
            "hipMallocArray",
            "array:a:32.32.0.0:1000:7",
            8 * 7000,
            ARRAY,
        ),
        request(
            "hipMalloc3DArray",
            "array3d:a:16.16.16.16:100:7:3",
            8 * 2100,
            ARRAY,
        ),
        request(
            "hipArrayCreate",
            "array_create:a:0x20.2:1000:7",
            8 * 7000,
            ARRAY,
        ),
        request(
            "hipArray3DCreate",
            "array3d_create:a:0x10.4:100:7:3",
            8 * 2100,
            ARRAY,
        ),
        request(
            "hipMallocMipmappedArray",
            "mipmapped:a:32.0.0.0:100:7:3:7",
            4 * levels([100, 7, 3], 7),
            MIPMAPPED,
        ),
        request(
            "hipMipmappedArrayCreate",
            "mipmapped_create:a:0x09.4:100:7:3:4",
            8 * levels([100, 7, 3], 4),
            MIPMAPPED,
        ),
    ]
}

/// Elements of all levels together: each level is half as large in every direction, but never less than one.
fn levels(extent: [u64; 3], count: u32) -> u64 {
    (0..count)
        .map(|level| {
            extent
                .iter()
                .map(|size| (size >> level).max(1))
                .product::<u64>()
        })
        .sum()
}

/// Other shapes, formats and flags.
pub(crate) fn other_shapes() -> Vec<Request> {
    let mut all = vec![
        request("hipExtMallocWithFlags", "ext:a:4097:0", 4097, MEMORY),
        request("hipExtMallocWithFlags", "ext:a:4097:3", 4097, MEMORY),
        request("hipMallocManaged", "managed:a:4097:2", 4097, MEMORY),
        request("hipMallocPitch", "pitch:a:1024:7", 1024 * 7, MEMORY),
        request("hipMallocPitch", "pitch:a:1:1", PITCH, MEMORY),
        request("hipMalloc3D", "malloc3d:a:1:1:5", PITCH * 5, MEMORY),
        request("hipMallocArray", "array:a:8.0.0.0:77:0", 77, ARRAY),
        request("hipMallocArray", "array:a:16.0.0.0:77:3", 2 * 77 * 3, ARRAY),
        request("hipMallocArray", "array:a:8.8.8.8:77:1", 4 * 77, ARRAY),
        request(
            "hipMalloc3DArray",
            "array3d:a:32.32.32.32:9:0:0",
            16 * 9,
            ARRAY,
        ),
        request("hipMalloc3DArray", "array3d:a:8.0.0.0:9:5:0", 45, ARRAY),
        request(
            "hipMallocMipmappedArray",
            "mipmapped:a:8.8.0.0:33:0:0:6",
            2 * levels([33, 0, 0], 6),
            MIPMAPPED,
        ),
        request(
            "hipMallocMipmappedArray",
            "mipmapped:a:32.0.0.0:1:1:1:1",
            4,
            MIPMAPPED,
        ),
        request(
            "hipMipmappedArrayCreate",
            "mipmapped_create:a:0x03.1:5:300:0:9",
            4 * levels([5, 300, 0], 9),
            MIPMAPPED,
        ),
    ];
    for (format, bytes) in [
        (0x01, 1),
        (0x02, 2),
        (0x03, 4),
        (0x08, 1),
        (0x09, 2),
        (0x0a, 4),
        (0x10, 2),
        (0x20, 4),
    ] {
        for channels in [1, 2, 4] {
            let element = bytes * channels;
            let (flat, deep) = (
                format!("array_create:a:{format:#04x}.{channels}:77:0"),
                format!("array3d_create:a:{format:#04x}.{channels}:77:3:2"),
            );
            all.push(request("hipArrayCreate", &flat, element * 77, ARRAY));
            all.push(request("hipArray3DCreate", &deep, element * 77 * 6, ARRAY));
        }
    }
    all
}
