package repack

import "qtool/formats/packed"

// The types with blocks of 256: their layouts are described in formats/ggml.

// scaleMin gives scale and minimum of sub-block i of Q4_K and Q5_K.
func scaleMin(b *[12]byte, i int) (scale, minimum byte) {
	if i < 4 {
		return b[i] & 63, b[4+i] & 63
	}
	return b[4+i]&15 | b[i-4]>>6<<4, b[4+i]>>4 | b[i]>>6<<4
}

// nibbles puts the codes of 32 bytes, low or high nibbles of each, in the places of a row: those of 16 columns beside those of the
// 16 after them.
func nibbles(dst []byte, src *[32]byte, shift, r int) {
	const low = 0x0f0f0f0f
	for v := range 4 {
		a, b := order.Uint32(src[4*v:])>>shift&low, order.Uint32(src[16+4*v:])>>shift&low
		order.PutUint32(dst[32*v+4*r:], a|b<<4)
	}
}

func packQ4_K(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 256 {
			b := (*[144]byte)(row)
			copy(out[2*r:2*r+2], b[:2])
			copy(out[16+2*r:16+2*r+2], b[2:4])
			out = out[32:]
			for i := range 8 {
				out[r], out[8+r] = scaleMin((*[12]byte)(b[4:]), i)
				nibbles(out[16:144], (*[32]byte)(b[16+i/2*32:]), i%2*4, r)
				out = out[144:]
			}
			row = row[144:]
		}
	}
	return true
}

func packQ5_K(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 256 {
			b := (*[176]byte)(row)
			copy(out[2*r:2*r+2], b[:2])
			copy(out[16+2*r:16+2*r+2], b[2:4])
			out = out[32:]
			for i := range 8 {
				out[r], out[8+r] = scaleMin((*[12]byte)(b[4:]), i)
				fifth := uint32(0)
				for four := range 8 {
					fifth |= order.Uint32(b[16+4*four:]) >> i & 0x01010101 << four
				}
				order.PutUint32(out[16+4*r:], fifth)
				nibbles(out[48:176], (*[32]byte)(b[48+i/2*32:]), i%2*4, r)
				out = out[176:]
			}
			row = row[176:]
		}
	}
	return true
}

func packQ6_K(dst []byte, rows [][]byte, cols int, _ *Scratch) bool {
	for r, row := range rows {
		out := dst
		for range cols / 256 {
			b := (*[210]byte)(row)
			copy(out[2*r:2*r+2], b[208:])
			out = out[16:]
			for i := range 8 {
				out[2*r], out[2*r+1] = b[192+2*i], b[192+2*i+1]
				part := i % 4 // of 128 elements
				high := b[128+i/4*32:]
				for h := range 2 {
					pairs := uint32(0)
					for v := range 4 {
						pairs |= order.Uint32(high[16*h+4*v:]) >> (2 * part) & 0x03030303 << (2 * v)
					}
					order.PutUint32(out[16+32*h+4*r:], pairs)
				}
				nibbles(out[80:208], (*[32]byte)(b[i/4*64+part%2*32:]), part/2*4, r)
				out = out[208:]
			}
			row = row[210:]
		}
	}
	return true
}

func packIQ4_XS(dst []byte, rows [][]byte, cols int, s *Scratch) bool {
	scheme := packed.Scheme{Bits: 4, Group: 32, Codebook: true, TwoLevel: true}
	codes := s.room(scheme, cols)[:len(rows)]
	for r, row := range rows {
		c := codes[r]
		for span := range cols / 256 {
			b := (*[136]byte)(row)
			c.Scales[span] = order.Uint16(b[:])
			high := order.Uint16(b[2:])
			for i := range 8 {
				c.Subs[8*span+i] = int8(b[4+i/2]>>(i%2*4)&15|byte(high>>(2*i)&3)<<4) - 32
				out := c.Codes[256*span+32*i:]
				for j, q := range b[8+16*i : 24+16*i] {
					out[j], out[16+j] = int8(q&15), int8(q>>4)
				}
			}
			row = row[136:]
		}
	}
	packed.PackPanel(scheme, dst, codes, cols)
	return true
}

func packQ3_K(dst []byte, rows [][]byte, cols int, s *Scratch) bool {
	scheme := packed.Scheme{Bits: 3, Group: 16, TwoLevel: true}
	codes := s.room(scheme, cols)[:len(rows)]
	for r, row := range rows {
		c := codes[r]
		for span := range cols / 256 {
			b := (*[110]byte)(row)
			c.Scales[span] = order.Uint16(b[108:])
			for i := range 16 {
				c.Subs[16*span+i] = int8(b[96+i%8]>>(i/8*4)&15|b[104+i%4]>>(i/4*2)&3<<4) - 32
				out := c.Codes[256*span+16*i:]
				low, high := b[32+i/8*32+i%2*16:], b[i%2*16:]
				for j := range 16 {
					out[j] = int8(low[j]>>(i/2%4*2)&3 | high[j]>>(i/2)&1<<2)
				}
			}
			row = row[110:]
		}
	}
	packed.PackPanel(scheme, dst, codes, cols)
	return true
}
