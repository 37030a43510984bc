package llamacpp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
)

// Sizes of the model: small, since it is only there to be fed.
const (
	layers  = 2
	width   = 64
	heads   = 4
	feed    = 128
	trained = 8192 // tokens of context
)

// Tokens of the model: one for each byte, then the marks.
const (
	tokenStart = 256 + iota
	tokenEnd
	tokenUnknown
	tokenCount
)

// chatTemplate writes a message as its role, line feed, text and line feed. The
// answer follows the opening of an assistant's message.
const chatTemplate = `{% for m in messages %}{{ m.role + '\n' + m.content + '\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}`

// Types of GGUF values, and of tokens.
const (
	ggufUint32  = 4
	ggufInt32   = 5
	ggufFloat32 = 6
	ggufBool    = 7
	ggufString  = 8
	ggufArray   = 9

	tokenIsUnknown = 2
	tokenIsControl = 3
	tokenIsByte    = 6

	alignment = 32
)

// gguf is a model file, version 3, under construction.
type gguf struct {
	values, tensors, data bytes.Buffer
	valueCount            uint64
	tensorCount           uint64
	random                *rand.Rand
}

func put(b *bytes.Buffer, v any) { binary.Write(b, binary.LittleEndian, v) } // a Buffer takes everything

func putString(b *bytes.Buffer, s string) {
	put(b, uint64(len(s)))
	b.WriteString(s)
}

func (g *gguf) key(name string, kind uint32) {
	g.valueCount++
	putString(&g.values, name)
	put(&g.values, kind)
}

func (g *gguf) text(name, s string) {
	g.key(name, ggufString)
	putString(&g.values, s)
}

func (g *gguf) number(name string, n uint32) {
	g.key(name, ggufUint32)
	put(&g.values, n)
}

func (g *gguf) float(name string, f float32) {
	g.key(name, ggufFloat32)
	put(&g.values, f)
}

func (g *gguf) flag(name string, on bool) {
	g.key(name, ggufBool)
	put(&g.values, on)
}

func (g *gguf) array(name string, kind uint32, length int) {
	g.key(name, ggufArray)
	put(&g.values, kind)
	put(&g.values, uint64(length))
}

// tensor adds values of 32 bits that value gives by their row, which is the last
// dimension.
func (g *gguf) tensor(name string, value func(row int) float32, dims ...int) {
	g.tensorCount++
	putString(&g.tensors, name)
	put(&g.tensors, uint32(len(dims)))
	count := 1
	for _, d := range dims {
		put(&g.tensors, uint64(d))
		count *= d
	}
	put(&g.tensors, uint32(0)) // float32
	put(&g.tensors, uint64(g.data.Len()))
	for i := range count {
		put(&g.data, value(i/dims[0]))
	}
	pad(&g.data)
}

func pad(b *bytes.Buffer) {
	for b.Len()%alignment != 0 {
		b.WriteByte(0)
	}
}

func one(int) float32 { return 1 }

// writeModel writes a transformer with random weights whose tokens are bytes, so
// that token counts follow from texts. Its answers are printable noise.
func writeModel(path string) error {
	g := gguf{random: rand.New(rand.NewPCG(1, 2))}
	g.text("general.architecture", "llama")
	g.text("general.name", "random")
	g.number("llama.block_count", layers)
	g.number("llama.context_length", trained)
	g.number("llama.embedding_length", width)
	g.number("llama.feed_forward_length", feed)
	g.number("llama.attention.head_count", heads)
	g.number("llama.rope.dimension_count", width/heads)
	g.number("llama.vocab_size", tokenCount)
	g.float("llama.attention.layer_norm_rms_epsilon", 1e-6)

	g.text("tokenizer.ggml.model", "llama")
	g.text("tokenizer.chat_template", chatTemplate)
	g.number("tokenizer.ggml.bos_token_id", tokenStart)
	g.number("tokenizer.ggml.eos_token_id", tokenEnd)
	g.number("tokenizer.ggml.unknown_token_id", tokenUnknown)
	g.flag("tokenizer.ggml.add_bos_token", false)
	g.flag("tokenizer.ggml.add_space_prefix", false)
	g.vocabulary()

	noise := func(int) float32 { return float32(g.random.NormFloat64()) * 0.1 }
	g.tensor("token_embd.weight", noise, width, tokenCount)
	g.tensor("output_norm.weight", one, width)
	// Nothing but printable tokens has a chance, since the others' scores are 0
	// and there are many higher ones.
	g.tensor("output.weight", func(token int) float32 {
		if token < ' ' || token > '~' {
			return 0
		}
		return noise(0) * 20
	}, width, tokenCount)
	for i := range layers {
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", i, s) }
		g.tensor(name("attn_norm"), one, width)
		for _, s := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
			g.tensor(name(s), noise, width, width)
		}
		g.tensor(name("ffn_norm"), one, width)
		g.tensor(name("ffn_gate"), noise, width, feed)
		g.tensor(name("ffn_up"), noise, width, feed)
		g.tensor(name("ffn_down"), noise, feed, width)
	}

	var file bytes.Buffer
	file.WriteString("GGUF")
	put(&file, uint32(3))
	put(&file, g.tensorCount)
	put(&file, g.valueCount)
	file.Write(g.values.Bytes())
	file.Write(g.tensors.Bytes())
	pad(&file)
	file.Write(g.data.Bytes())
	return os.WriteFile(path, file.Bytes(), 0o600)
}

// vocabulary has one token for each byte, and the marks.
func (g *gguf) vocabulary() {
	g.array("tokenizer.ggml.tokens", ggufString, tokenCount)
	for b := range 256 {
		putString(&g.values, fmt.Sprintf("<0x%02X>", b))
	}
	for _, mark := range []string{"<s>", "</s>", "<unk>"} {
		putString(&g.values, mark)
	}
	g.array("tokenizer.ggml.scores", ggufFloat32, tokenCount)
	for range tokenCount {
		put(&g.values, float32(0))
	}
	g.array("tokenizer.ggml.token_type", ggufInt32, tokenCount)
	for range 256 {
		put(&g.values, int32(tokenIsByte))
	}
	for _, kind := range []int32{tokenIsControl, tokenIsControl, tokenIsUnknown} {
		put(&g.values, kind)
	}
}
