// Runs the program: `node wasm.mjs <file.wasm>`. It imports `print(address, length)` and
// exports `run`, which returns the status to exit with.
import { readFileSync, writeSync } from 'node:fs'

const env = {
  print(address, length) {
    writeSync(1, new Uint8Array(memory.buffer, address, length))
  },
}
const { instance } = await WebAssembly.instantiate(readFileSync(process.argv[2]), { env })
const { memory, run } = instance.exports
process.exit(run())
