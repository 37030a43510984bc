package wardentest

// ByteVocabulary is the vocabulary of a tokenizer whose tokens are bytes. It names
// them as byte-level tokenizers do: visible Latin-1 characters stand for
// themselves, the others, in order, for what follows U+0100.
func ByteVocabulary() map[string]int {
	vocabulary := make(map[string]int, 256)
	substitute := rune(0x100)
	for b := range 256 {
		name := rune(b)
		if visible := b > ' ' && b < 0x7f || b > 0xa0 && b != 0xad; !visible {
			name = substitute
			substitute++
		}
		vocabulary[string(name)] = b
	}
	return vocabulary
}
