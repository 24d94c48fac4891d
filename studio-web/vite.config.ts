import { svelte } from '@sveltejs/vite-plugin-svelte'
import { readFileSync } from 'node:fs'
import { defineConfig, type Plugin } from 'vite'

// One classic script: a module script does not load from a `file:` address, and the exported
// site must open from one.
const classicScript: Plugin = {
  name: 'classic-script',
  enforce: 'post',
  transformIndexHtml: {
    order: 'post',
    handler: (html) =>
      html.replace('<script type="module" crossorigin', '<script defer').replace(/ crossorigin/g, ''),
  },
}

// `meshwright studio export` reads which answers a static site holds.
const requests: Plugin = {
  name: 'requests',
  generateBundle() {
    this.emitFile({ type: 'asset', fileName: 'requests.json', source: readFileSync('src/requests.json') })
  },
}

export default defineConfig({
  base: './',
  plugins: [svelte(), classicScript, requests],
  server: { proxy: { '/api': 'http://127.0.0.1:8765' } },
  build: {
    outDir: '../src/meshwright/studio/static',
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    target: 'es2022',
    rolldownOptions: {
      output: {
        format: 'iife',
        codeSplitting: false,
        entryFileNames: 'app.js',
        assetFileNames: 'app[extname]',
      },
    },
  },
})
