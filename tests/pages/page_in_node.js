// Runs the page's JavaScript in Node: node page_in_node.js FOLDER. job.json there names the scripts
// and the code to run, which may read the folder's files; prints what it returns as JSON.

const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const vm = require("node:vm");

const folder = process.argv[2];
const job = JSON.parse(readFileSync(join(folder, "job.json"), "utf8"));
const script = job.scripts.map((file) => readFileSync(file, "utf8")).join("\n");

/** A file's bytes, at a place in memory that any type of number may begin at. */
function read(file) {
  return Uint8Array.from(readFileSync(join(folder, file)));
}

vm.runInThisContext(`(async (job, read) => { ${script}\n${job.code} })`)(job, read).then((result) =>
  console.log(
    JSON.stringify(result, (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value)),
  ),
);
