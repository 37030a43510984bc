package llmapi

import "golang.org/x/sys/cpu"

// classify tells the bytes of a block apart.
func classify(block *[blockSize]byte) classes {
	if cpu.X86.HasAVX2 {
		return classifyAVX2(block)
	}
	return classifyWords(block)
}

// classifyAVX2 is classify in vector instructions; it tells short of every byte.
//
//go:noescape
func classifyAVX2(block *[blockSize]byte) (c classes)
