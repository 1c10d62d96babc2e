//! Devices of runtimes and drivers that are made up.

use super::*;

/// A GPU of a driver: its location, and the number in its UUID.
#[derive(Clone, Copy)]
struct Gpu(u32, u64);

impl Identity for Gpu {
    fn bdf(&self) -> Bdf {
        Bdf::from_kfd(0, self.0)
    }

    fn unique_id(&self) -> u64 {
        self.1
    }
}

/// A runtime that shows these GPUs.
struct Shows {
    gpus: Vec<Gpu>,
    functions: bool,
}

impl Shows {
    fn gpu(&self, device: c_int) -> Option<Gpu> {
        self.gpus.get(usize::try_from(device).ok()?).copied()
    }
}

impl Told for Shows {
    fn count(&self) -> Option<usize> {
        Some(self.gpus.len())
    }

    fn address(&self, device: c_int) -> Option<Bdf> {
        let mask = if self.functions { 0xffff } else { 0xfff8 };
        Some(Bdf::from_kfd(0, self.gpu(device)?.0 & mask))
    }

    fn has_functions(&self) -> bool {
        self.functions
    }

    fn unique_id(&self, device: c_int) -> Option<u64> {
        Some(self.gpu(device)?.1).filter(|id| *id != 0)
    }
}

/// Eight boards of eight partitions, told apart as drivers do: by the function, by the location, or by UUIDs too.
fn function(board: u32, partition: u32) -> Gpu {
    Gpu((3 + board) << 8 | partition, u64::from(100 + board))
}

fn location(board: u32, partition: u32) -> Gpu {
    Gpu(partition << 28 | (3 + board) << 8, u64::from(100 + board))
}

fn uuids(board: u32, partition: u32) -> Gpu {
    Gpu(
        partition << 28 | (3 + board) << 8,
        u64::from(1000 + 8 * board + partition),
    )
}

fn nameless(board: u32, partition: u32) -> Gpu {
    Gpu(partition << 28 | (3 + board) << 8, 0)
}

fn machine(driver: fn(u32, u32) -> Gpu) -> Vec<Gpu> {
    (0..64).map(|n| driver(n / 8, n % 8)).collect()
}

/// Where each device is found. `shown`: what the runtime shows; `known`: what we think that it shows.
fn found(gpus: &[Gpu], shown: &[usize], functions: bool, known: Option<&[usize]>) -> Vec<Placed> {
    let told = Shows {
        gpus: shown.iter().map(|index| gpus[*index]).collect(),
        functions,
    };
    (0..c_int::try_from(shown.len()).unwrap())
        .map(|device| {
            let address = told.address(device).unwrap();
            place(gpus, device, address, &told, || {
                known.map(<[usize]>::to_vec)
            })
        })
        .collect()
}

fn all() -> Vec<usize> {
    (0..64).collect()
}

fn at(indices: &[usize]) -> Vec<Placed> {
    indices.iter().map(|index| Placed::At(*index)).collect()
}

#[test]
fn sixty_four_partitions_are_told_apart_with_every_driver_and_release() {
    for driver in [function, location, uuids, nameless] {
        for functions in [true, false] {
            let gpus = machine(driver);
            let found = found(&gpus, &all(), functions, Some(&all()));
            assert_eq!(found, at(&all()));
        }
    }
}

#[test]
fn uuids_and_functions_tell_partitions_apart_in_any_order() {
    let some = [63, 0, 9, 8, 17, 1];
    for (driver, functions) in [
        (uuids as fn(u32, u32) -> Gpu, true),
        (uuids, false),
        (function, true),
    ] {
        assert_eq!(found(&machine(driver), &some, functions, None), at(&some));
    }
}

#[test]
fn the_order_counts_only_if_nothing_speaks_against_it() {
    let some = [63, 0, 9, 8, 17, 1];
    for driver in [location, nameless] {
        let gpus = machine(driver);
        let lost = |known: Option<&[usize]>| {
            let found = found(&gpus, &some, true, known);
            assert_eq!(found, [Placed::Ambiguous; 6], "{known:?}");
        };
        assert_eq!(found(&gpus, &some, true, Some(&some)), at(&some));
        lost(None);
        lost(Some(&all()));
        lost(Some(&some[..5]));
        lost(Some(&[]));
        // As many, and one at another address.
        lost(Some(&[63, 0, 9, 8, 1, 17]));
        lost(Some(&[63, 0, 9, 8, 17, 99]));
    }
    // A release that does not tell functions does not make the first partition of all.
    let gpus = machine(function);
    assert_eq!(found(&gpus, &some, false, None), [Placed::Ambiguous; 6]);
}

#[test]
fn a_uuid_that_is_none_of_the_board_s_is_believed() {
    let gpus = machine(uuids);
    let mut other = gpus.clone();
    other[1].1 = 5;
    let told = Shows {
        gpus: other,
        functions: true,
    };
    let address = told.address(1).unwrap();
    let found = place(&gpus, 1, address, &told, || Some(all()));
    assert_eq!(found, Placed::Ambiguous);
}

#[test]
fn a_board_that_is_whole_needs_no_more_than_its_address() {
    let gpus = [Gpu(0x300, 7), Gpu(0x8300, 7)];
    assert_eq!(found(&gpus, &[1, 0], true, None), at(&[1, 0]));
    let nowhere = Bdf::from_kfd(0, 0x8400);
    let told = Shows {
        gpus: gpus.to_vec(),
        functions: true,
    };
    assert_eq!(place(&gpus, 0, nowhere, &told, || None), Placed::Nowhere);
}

#[test]
fn numbers_of_uuids() {
    assert_eq!(number_in(b"5c0d93a17be24601"), Some(0x5c0d_93a1_7be2_4601));
    assert_eq!(number_in(b"XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), None);
    assert_eq!(number_in(b"+c0d93a17be24601"), None);
    assert_eq!(number_in(b"0000000000000000"), None);
}

#[test]
fn lists_that_pick_devices() {
    let from = [10, 11, 12];
    for (list, expected) in [
        ("2,0", Some(vec![12, 10])),
        ("1", Some(vec![11])),
        ("0,1,2", Some(vec![10, 11, 12])),
        ("", None),
        ("0,", None),
        ("0,3", None),
        ("0,0", None),
        ("-1", None),
        (" 1", None),
        ("0,GPU-5c0d93a17be24601", None),
    ] {
        assert_eq!(picked(list.as_bytes(), &from), expected, "{list:?}");
    }
}
