//! Writes a model in the GGUF format, version 3: a small one of the architecture that llama.cpp is named after, with
//! random weights and a vocabulary of single bytes.
//!
//! The format is described in ggml's `docs/gguf.md`, the names of keys and tensors are those of llama.cpp's
//! `src/llama-arch.cpp`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;

/// How large the model is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// Numbers that a token is made of.
    pub(crate) width: u32,
    /// Layers.
    pub(crate) layers: u32,
}

const HEADS: u32 = 4;
const CONTEXT: u32 = 512;
/// What the data is aligned to, if the file does not say otherwise.
const ALIGNMENT: u64 = 32;

// Types of values.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
/// The type of a tensor of 32-bit floats.
const TENSOR_F32: u32 = 0;

// Types of tokens.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// The part of the file before the data.
#[derive(Default)]
struct Header {
    bytes: Vec<u8>,
    entries: u64,
}

impl Header {
    fn text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.entries += 1;
        self.text(key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn u32(&mut self, key: &str, value: u32) {
        self.key(key, U32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.key(key, F32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key, STRING);
        self.text(value);
    }

    fn array<T>(&mut self, key: &str, kind: u32, values: &[T], write: fn(&mut Self, &T)) {
        self.key(key, ARRAY);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            write(self, value);
        }
    }
}

/// A tensor's name and extents.
type Tensor = (String, Vec<u32>);

impl Model {
    /// Writes it.
    pub(crate) fn write(self, path: &Path) -> Result<()> {
        let vocabulary = vocabulary();
        let tensors = self.tensors(vocabulary.len() as u32);
        let settings = self.settings(&vocabulary);
        let mut head = Header::default();
        head.bytes.extend(b"GGUF");
        head.bytes.extend(3_u32.to_le_bytes());
        head.bytes.extend((tensors.len() as u64).to_le_bytes());
        head.bytes.extend(settings.entries.to_le_bytes());
        head.bytes.extend(&settings.bytes);
        let mut offset = 0_u64;
        for (name, extents) in &tensors {
            head.text(name);
            head.bytes.extend((extents.len() as u32).to_le_bytes());
            for extent in extents {
                head.bytes.extend(u64::from(*extent).to_le_bytes());
            }
            head.bytes.extend(TENSOR_F32.to_le_bytes());
            head.bytes.extend(offset.to_le_bytes());
            offset += size(extents);
        }
        let padding = (head.bytes.len() as u64).next_multiple_of(ALIGNMENT);
        head.bytes.resize(padding.try_into()?, 0);
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&head.bytes)?;
        let mut random = Random(1);
        for (_, extents) in &tensors {
            for _ in 0..size(extents) / 4 {
                file.write_all(&random.weight().to_le_bytes())?;
            }
        }
        file.flush()?;
        Ok(())
    }

    fn settings(self, vocabulary: &[(String, i32)]) -> Header {
        let mut settings = Header::default();
        settings.string("general.architecture", "llama");
        settings.string("general.name", "random");
        settings.u32("llama.context_length", CONTEXT);
        settings.u32("llama.embedding_length", self.width);
        settings.u32("llama.block_count", self.layers);
        settings.u32("llama.feed_forward_length", 2 * self.width);
        settings.u32("llama.attention.head_count", HEADS);
        settings.u32("llama.attention.head_count_kv", HEADS);
        settings.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
        settings.u32("llama.rope.dimension_count", self.width / HEADS);
        settings.string("tokenizer.ggml.model", "llama");
        settings.array(
            "tokenizer.ggml.tokens",
            STRING,
            vocabulary,
            |head, token| {
                head.text(&token.0);
            },
        );
        settings.array("tokenizer.ggml.scores", F32, vocabulary, |head, _| {
            head.bytes.extend(0_f32.to_le_bytes());
        });
        settings.array(
            "tokenizer.ggml.token_type",
            I32,
            vocabulary,
            |head, token| {
                head.bytes.extend(token.1.to_le_bytes());
            },
        );
        settings.u32("tokenizer.ggml.unknown_token_id", 0);
        settings.u32("tokenizer.ggml.bos_token_id", 1);
        settings.u32("tokenizer.ggml.eos_token_id", 2);
        settings
    }

    fn tensors(self, vocabulary: u32) -> Vec<Tensor> {
        let width = self.width;
        let mut tensors = vec![
            ("token_embd.weight".into(), vec![width, vocabulary]),
            ("output_norm.weight".into(), vec![width]),
            ("output.weight".into(), vec![width, vocabulary]),
        ];
        for layer in 0..self.layers {
            let parts = [
                ("attn_norm", vec![width]),
                ("attn_q", vec![width, width]),
                ("attn_k", vec![width, width]),
                ("attn_v", vec![width, width]),
                ("attn_output", vec![width, width]),
                ("ffn_norm", vec![width]),
                ("ffn_gate", vec![width, 2 * width]),
                ("ffn_up", vec![width, 2 * width]),
                ("ffn_down", vec![2 * width, width]),
            ];
            tensors.extend(
                parts.map(|(part, extents)| (format!("blk.{layer}.{part}.weight"), extents)),
            );
        }
        tensors
    }
}

/// The tokens, each with its type: three with a meaning, and every byte.
fn vocabulary() -> Vec<(String, i32)> {
    let special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)];
    let special = special.map(|(token, kind)| (token.to_string(), kind));
    let bytes = (0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), BYTE));
    special.into_iter().chain(bytes).collect()
}

/// Bytes that a tensor takes in the file.
fn size(extents: &[u32]) -> u64 {
    let numbers: u64 = extents.iter().map(|extent| u64::from(*extent)).product();
    (4 * numbers).next_multiple_of(ALIGNMENT)
}

/// Marsaglia's xorshift: the same model every time.
struct Random(u64);

impl Random {
    /// Between -0.1 and 0.1.
    fn weight(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1_u64 << 24) as f32 - 0.5) / 5.0
    }
}
